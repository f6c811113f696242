"""Defines a recipe: the networks, losses and stages of one GAN, without any knowledge of ranks."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from hvdgan.recipe.draws import Random
from hvdgan.recipe.stages import Stage


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """Options of a recipe that has none of its own."""


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """Facts about the data; `self.data` in a recipe.

    Args:
        image_size: height and width of an image (pixels).
        channels: number of channels, 1 (grey) or 3 (RGB).
        num_images: number of images to train on, without the held-out ones.
        num_classes: number of classes, labelled 0 to num_classes - 1; 0 if the data has no labels.
    """

    image_size: int
    channels: int
    num_images: int
    num_classes: int = 0


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
        truncation: largest distance of styles from their mean, from 0 to 1, for sample(); 1: no limit.

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
        paired: whether the pixels are pairs.

    Returns:
        The inputs, None without pairs, and the images, each (B, H, W, C) float32 in [-1, 1].
    """
    values = tf.cast(pixels, tf.float32) / 127.5 - 1.0
    if not paired:
        return None, values
    inputs, images = tf.split(values, 2, axis=-1)
    return inputs, images


class Recipe:
    """One GAN. Subclass it, and name the subclass on the command line: --recipe my_module:MyGAN.

    networks(), optimizers(), stages() and sample() must be written; the other methods are optional.

    Args:
        options: values of the recipe's own flags, an instance of Options; afterwards `self.options`.
        data: facts about the data; afterwards `self.data`.
    """

    Options: ClassVar[type] = NoOptions
    """a frozen dataclass; every field needs a default and becomes a flag, and the string below it is its help"""
    ema: ClassVar[Sequence[str]] = ()
    """names of the networks whose weights are averaged over time (--ema-decay); samples use the averages"""
    may_change: ClassVar[Sequence[str]] = ()
    """names of the options that a resumed run may change, besides those that only give the last stage its steps"""
    paired: ClassVar[bool] = False
    """whether each image comes with an input image (batch.inputs), as in the translation of one into the other"""
    shows_data: ClassVar[bool] = False
    """whether sample() starts from images of the data, not from latents alone"""
    truncates: ClassVar[bool] = False
    """whether sample() uses batch.truncation (hvdgan.sample --truncation)"""

    def __init__(self, options: Any, data: DataSpec) -> None:
        self.options = options
        self.data = data

    def networks(self) -> dict[str, keras.Model]:
        """Make the networks.

        Returns:
            Keras models by name, built: made with an Input, or called once on an example. No two of them may share a
            variable, and no layer may draw random numbers of its own, as Dropout does.
        """
        raise NotImplementedError

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        """Make the optimizers.

        Returns:
            One Keras optimizer for each network, by the network's name. All updates that own the network use it, with
            one set of slots and one count of iterations.
        """
        raise NotImplementedError

    def stages(self) -> list[Stage]:
        """List the stages.

        Returns:
            The stages in the order in which they run. Every network must be owned by some update.
        """
        raise NotImplementedError

    def draw(self, random: Random) -> dict[str, tf.Tensor]:
        """Draw the tensors that all updates of a step share, such as latents and masks.

        Two names have a meaning for hvdgan.sample: `latents`, float32 (B, ...), is what --interpolate interpolates;
        `classes`, integers (B,), is what --class sets. Draw the latter with
        random.integers("classes", (), self.data.num_classes).

        Args:
            random: Random whose numbers belong to the step.

        Returns:
            Tensors (B, ...) by name; each becomes an attribute of the batch. A value that is the same for all samples
            may be (1, ...), a scalar or a number. The names of Batch's own attributes are refused.
        """
        return {}

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        """Make images to look at, for the grids in the run folder and for hvdgan.sample.

        Args:
            nets: networks in inference mode, those named in `ema` with their averaged weights.
            batch: images of the data if `shows_data` is true, and draws that do not depend on the step.

        Returns:
            Images (N, H, W, C) float32 in [-1, 1], C 1 or 3; N may be less than B.
        """
        raise NotImplementedError

    def evaluate(self, nets: Any, batch: Batch) -> dict[str, tf.Tensor]:
        """Measure the networks on held-out images; a recipe with this method has a holdout.

        Args:
            nets: networks in inference mode, as in sample().
            batch: held-out images.

        Returns:
            Metrics by name, (B,) each, one number per image.
        """
        raise NotImplementedError

    @classmethod
    def evaluates(cls) -> bool:
        """Return whether the recipe has a method evaluate()."""
        return cls.evaluate is not Recipe.evaluate

    def complete(self, nets: Any, images: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Fill holes of images; hvdgan.complete can be used with a recipe that has this method.

        Args:
            nets: networks in inference mode, as in sample().
            images: images with holes, (B, H, W, C) float32 in [-1, 1].
            mask: holes, (B, H, W, 1) float32, 1 inside and 0 outside.

        Returns:
            The images with their holes filled, (B, H, W, C) float32 in [-1, 1].
        """
        raise NotImplementedError

    @classmethod
    def completes(cls) -> bool:
        """Return whether the recipe has a method complete()."""
        return cls.complete is not Recipe.complete
