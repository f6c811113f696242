"""Decodes the records of packed shards with TensorFlow operations, which do not hold the GIL."""

import numpy as np
import tensorflow as tf


class Decoder:
    """Turns serialized tf.train.Examples into images.

    The pixels equal those that Pillow decodes, since JPEGs are decoded with the accurate transform.

    Args:
        encoding: png, jpeg or raw.
        shape: shape of every image, (height, width, channels).
        paired: True if a record also holds an input, whose channels come first.
    """

    def __init__(self, encoding: str, shape: tuple[int, int, int], paired: bool) -> None:
        self._encoding = encoding
        self._shape = shape
        sides = ("input", "image") if paired else ("image",)
        self._wanted = {f"{side}/encoded": tf.io.FixedLenFeature((), tf.string) for side in sides}
        signature = [tf.TensorSpec((1,), tf.string)]
        self._single = tf.function(self.images, input_signature=signature, autograph=False)

    def __call__(self, record: bytes) -> np.ndarray:
        """One image, uint8 (height, width, channels), with twice the channels if paired.

        Raises:
            tf.errors.OpError: the record cannot be decoded.
        """
        with tf.device("cpu:0"):
            return self._single(tf.constant([record], tf.string))[0].numpy()

    def images(self, records: tf.Tensor) -> tf.Tensor:
        """Decode records (B,), with B known: an operation for each image costs less than a loop in the graph.

        Returns:
            uint8 (B, height, width, channels), with twice the channels if paired.
        """
        parsed = tf.io.parse_example(records, self._wanted)
        return tf.concat([self._side(parsed[name], int(records.shape[0])) for name in self._wanted], axis=-1)

    def _side(self, encoded: tf.Tensor, count: int) -> tf.Tensor:
        if self._encoding == "raw":
            return tf.reshape(tf.io.decode_raw(encoded, tf.uint8), (count, *self._shape))
        return tf.stack([self._image(one) for one in tf.unstack(encoded, count)])

    def _image(self, encoded: tf.Tensor) -> tf.Tensor:
        channels = self._shape[-1]
        if self._encoding == "png":
            return tf.ensure_shape(tf.io.decode_png(encoded, channels=channels), self._shape)
        return tf.ensure_shape(
            tf.io.decode_jpeg(encoded, channels=channels, dct_method="INTEGER_ACCURATE"), self._shape
        )
