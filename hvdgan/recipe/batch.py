"""What a loss, sample() and evaluate() compute with: images, labels, and the draws of the recipe."""

from collections.abc import Callable

import tensorflow as tf

from hvdgan.recipe.draws import Random


class Batch:
    """Input of a loss, sample() and evaluate(): images, labels, and the tensors that draw() returned, as attributes.

    B is the number of images that this call sees: a rank's slice of the global batch, a micro-batch of it with
    --accumulate, or the images of a sample grid or an evaluation.

    Attributes:
        images: images of the data, (B, image_size, image_size, channels) float32 in [-1, 1].
        labels: classes of the images, (B,) int32 from 0 to num_classes - 1; None if the data has no classes. In
            hvdgan.sample these are the drawn classes, or all classes in turn.
        inputs: input of each image, (B, image_size, image_size, channels) float32 in [-1, 1], if the recipe is
            `paired`; else None.
        random: Random whose numbers belong to this update alone. In a loss, batch.random.step is the global step, a
            scalar int64 tensor, from which a weight can be computed that changes during the run.
        augment: function of images (B, H, W, C) and a key; returns the images as the discriminator should see them,
            with the augmentations of --diff-augment, drawn anew for each key. Without the flag it returns them
            unchanged.
        truncation: factor that pulls styles towards their mean in sample(), from 0 (the mean) to 1 (unchanged).

    Raises:
        AttributeError: the batch has no such attribute; the message names those that it has.
    """

    def __init__(
        self,
        images: tf.Tensor,
        labels: tf.Tensor | None,
        random: Random,
        drawn: dict[str, tf.Tensor],
        *,
        inputs: tf.Tensor | None = None,
    ) -> None:
        self.images = images
        self.labels = labels
        self.random = random
        self.inputs = inputs
        self.augment: Callable[[tf.Tensor, str], tf.Tensor] = lambda images, key: images
        self.truncation = 1.0
        self.__dict__.update(drawn)

    def __getattr__(self, name: str) -> tf.Tensor:
        raise AttributeError(
            f"the batch has no {name}; it has {', '.join(sorted(self.__dict__))}; draw() can add to it"
        )


def split_pairs(pixels: tf.Tensor, *, paired: bool) -> tuple[tf.Tensor | None, tf.Tensor]:
    """Convert pixels of the data to the inputs and images of a batch.

    Args:
        pixels: images, (B, H, W, C) uint8; or pairs, (B, H, W, 2C) with the channels of the inputs first.
        paired: True if the pixels are pairs.

    Returns:
        The inputs, None without pairs, and the images, each (B, H, W, C) float32 in [-1, 1].
    """
    values = tf.cast(pixels, tf.float32) / 127.5 - 1.0
    if not paired:
        return None, values
    inputs, images = tf.split(values, 2, axis=-1)
    return inputs, images
