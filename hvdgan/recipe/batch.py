"""What a loss, sample() and evaluate() compute with: samples, what describes them, and the draws of the recipe."""

from collections.abc import Callable

import tensorflow as tf

from hvdgan.recipe.draws import Random


class Batch:
    """Input of a loss, sample() and evaluate(): samples, labels, and the tensors that draw() returned, as attributes.

    B is the number of samples that this call sees: a rank's slice of the global batch, a micro-batch of it with
    --accumulate, or the images of a sample grid or an evaluation.

    Attributes:
        images: samples of the data as networks see them, (B, *self.data.shape) float32: pictures (B, H, W, C) in
            [-1, 1], arrays (B, H, W, C), (B, D, H, W, C) or (B, C) after the map of --values.
        labels: classes of the images, (B,) int32 from 0 to num_classes - 1; None if the data has no classes. In
            hvdgan.sample these are the drawn classes, or all classes in turn.
        inputs: input of each sample, (B, *self.data.input_shape) float32, if the recipe is `paired`; else None.
        conditions: numbers that describe each sample (--conditions), (B, k) float32 after the map of
            --condition-values; None if there are none. Their names are self.data.conditions.
        constants: fields that all samples share (--constants), (1, H, W, K) float32, or (B, H, W, K) with --crop; None
            if there are none.
        index: number of each sample in the data, (B,) int64.
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
        conditions: tf.Tensor | None = None,
        constants: tf.Tensor | None = None,
        index: tf.Tensor | None = None,
    ) -> None:
        self.images = images
        self.labels = labels
        self.random = random
        self.inputs, self.conditions, self.constants, self.index = inputs, conditions, constants, index
        self.augment: Callable[[tf.Tensor, str], tf.Tensor] = lambda images, key: images
        self.truncation = 1.0
        self.__dict__.update(drawn)

    def __getattr__(self, name: str) -> tf.Tensor:
        raise AttributeError(
            f"the batch has no {name}; it has {', '.join(sorted(self.__dict__))}; draw() can add to it"
        )
