"""Records to pixels by TensorFlow's own operations: off the interpreter's lock, so that threads decode in parallel."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf


def decoder(encoding: str, image_size: int, channels: int, paired: bool) -> Callable[[list[bytes]], np.ndarray]:
    """A function from records to images.

    The pixels are those that Pillow decodes: JPEG is asked for its accurate transform.

    Args:
        encoding: png, jpeg or raw.
        image_size: height and width of every image, in pixels.
        channels: of an image, 1 or 3.
        paired: whether a record holds an input, too.

    Returns:
        From serialized tf.train.Examples (B) to uint8 (B, image_size, image_size, channels), or twice the channels
        where paired, the input's first. It raises a tf.errors.OpError for what is no such record.
    """
    shape = (image_size, image_size, channels)
    sides = ("input", "image") if paired else ("image",)
    wanted = {f"{side}/encoded": tf.io.FixedLenFeature((), tf.string) for side in sides}

    def one(encoded: tf.Tensor) -> tf.Tensor:
        if encoding == "png":
            return tf.ensure_shape(tf.io.decode_png(encoded, channels=channels), shape)
        return tf.ensure_shape(tf.io.decode_jpeg(encoded, channels=channels, dct_method="INTEGER_ACCURATE"), shape)

    def many(encoded: tf.Tensor) -> tf.Tensor:
        if encoding == "raw":
            return tf.reshape(tf.io.decode_raw(encoded, tf.uint8), (tf.size(encoded), *shape))
        # One after another: the pipeline's threads, not TensorFlow's, are those that the rank owns for its data.
        return tf.map_fn(one, encoded, fn_output_signature=tf.TensorSpec(shape, tf.uint8), parallel_iterations=1)

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string)], autograph=False)
    def decode(records: tf.Tensor) -> tf.Tensor:
        parsed = tf.io.parse_example(records, wanted)
        return tf.concat([many(parsed[name]) for name in wanted], axis=-1)

    def run(records: list[bytes]) -> np.ndarray:
        with tf.device("cpu:0"):
            return decode(tf.constant(records, tf.string)).numpy()

    return run
