"""Defines a recipe: the networks, losses and stages of one GAN, without any knowledge of ranks."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from hvdgan.recipe.batch import Batch, State, StateValues
from hvdgan.recipe.data_spec import DataSpec
from hvdgan.recipe.draws import Random
from hvdgan.recipe.stages import Stage


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """Options of a recipe that has none of its own."""


class Recipe:
    """One GAN. Subclass it, and name the subclass on the command line: --recipe my_module:MyGAN.

    networks(), optimizers(), stages() and sample() must be written; the other methods are optional. Those that take
    `nets` get the networks in inference mode, those named in `ema` with their averaged weights, and a Batch.

    Args:
        options: values of the recipe's own flags, an instance of Options; afterwards `self.options`.
        data: facts about the data; afterwards `self.data`.
    """

    Options: ClassVar[type] = NoOptions
    """a frozen dataclass; every field needs a default and becomes a flag, and the string below it is its help"""
    ema: ClassVar[Sequence[str]] = ()
    """names of the networks whose weights are averaged over time (--ema-decay, --ema-half-life), for samples"""
    may_change: ClassVar[Sequence[str]] = ()
    """names of the options that a resumed run may change, besides the option that sets the steps of the last stage"""
    paired: ClassVar[bool] = False
    """whether each image comes with an input image (batch.inputs), as in the translation of one into the other"""
    domains: ClassVar[Sequence[str]] = ()
    """names of the domains, at least two, if each has samples of its own, without pairs (batch.domains); () for one"""
    shows_data: ClassVar[bool] = False
    """whether sample() starts from images of the data, not from latents alone; else it must not read them"""
    pack: int = 1
    """number of samples that a loss sees as one, as in PacGAN (Lin et al. 2018); it must divide the samples of a rank
    and of a micro-batch, and may be a property that reads an option"""
    truncates: ClassVar[bool] = False
    """whether sample() uses batch.truncation (hvdgan sample --truncation)"""
    translates_multiples_of: ClassVar[int | None] = None
    """number of which the sides of pictures for translate() must be multiples (pixels); None: they are the data's"""

    def __init__(self, options: Any, data: DataSpec) -> None:
        self.options = options
        self.data = data

    def networks(self) -> dict[str, keras.Model]:
        """Make the networks.

        Returns:
            Keras models by name, built (made with an Input, or called once on an example). Two of them may share
            layers, whose variables are trained, saved and averaged once. No layer may shuffle the samples, as MixUp
            does. A network whose `trainable` is False is frozen: no update owns it, it runs in inference mode, and no
            checkpoint holds it.
        """
        raise NotImplementedError

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer | dict[str, keras.optimizers.Optimizer]]:
        """Make the optimizers.

        Returns:
            One Keras optimizer for each network that is not frozen, by the network's name. All updates that own the
            network use it, with one set of slots and one count of iterations. Or a dict of optimizers by name, among
            which Update(optimizer=...) chooses. A network whose layers are all in other networks needs none. If an
            update owns several networks that share a layer, the optimizer of the first one trains it.
        """
        raise NotImplementedError

    def stages(self) -> list[Stage]:
        """List the stages.

        Returns:
            The stages in the order in which they run. Every network must be owned by some update,
            or be frozen.
        """
        raise NotImplementedError

    def grown(self, size: int | tuple[int, ...]) -> dict[str, keras.Model]:
        """Make the networks of a stage that names a size, of layers of networks(), so that all stages share weights.

        Args:
            size: size of the stage.

        Returns:
            Keras models by the names of networks(). In the stage, `nets.<name>` is the one given here, and an update
            that owns the network owns the variables of this one; all of them are variables of the network itself. A
            network that is left out is as networks() made it.
        """
        raise NotImplementedError

    def state(self) -> dict[str, State]:
        """Declare variables that belong to no network, such as a pool of earlier images, or a probability.

        Losses read them as `batch.state.<name>`, and set them by a third value that they return, a dict of new values
        by name, as in `return loss, metrics, {"pool": pool}`; a later update of the step sees them. Those per sample
        are (B, ...). The others are the same on all ranks: a loss computes them of the whole batch (batch.mean), or
        control() sets them.

        Returns:
            State by name.
        """
        return {}

    def control(self, state: StateValues, metrics: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Set state from what all ranks have measured in a step; it is called after the step's updates.

        Args:
            state: values of the state that is the same on all ranks.
            metrics: metrics of the updates that were due, by `<update>/<name>`, each the mean over all samples of all
                ranks; scalars float32.

        Returns:
            New values by name; those that are left out stay.
        """
        return {}

    def draw(self, random: Random) -> dict[str, tf.Tensor]:
        """Draw the tensors that all updates of a step share, such as latents and masks.

        Two names have a meaning for hvdgan sample: `latents`, float32 (B, ...), is what --interpolate interpolates;
        `classes`, integers (B,), is what --class sets. Draw the latter with
        random.integers("classes", (), self.data.num_classes).

        Returns:
            Tensors (B, ...) by name; each becomes an attribute of the batch. A value that is the same for all samples
            may be (1, ...), a scalar or a number. The names of Batch's own attributes are refused.
        """
        return {}

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor | dict[str, tf.Tensor]:
        """Make samples to look at, for the grids in the run folder and for hvdgan sample.

        The batch has images of the data if `shows_data` is true, and draws that do not depend on the step.

        Returns:
            For pictures, images (N, H, W, C) float32 in [-1, 1], C 1 or 3; for arrays, samples (N, *self.data.shape) as
            networks see them. N may be less than B. Or a dict of these as `images` and of further arrays (N, ...) by
            name, such as a mask; one with the name of an array of the data has its shape, self.data.array_shapes[name].
        """
        raise NotImplementedError

    def generate(self, nets: Any, batch: Batch) -> tf.Tensor | dict[str, tf.Tensor]:
        """Make samples to compare with real ones (--eval-samples), if sample() returns more than these.

        The batch is as in sample(); its images are held-out ones, if there are some.

        Returns:
            Samples (N, *self.data.shape) float32 as networks see them; N may be less than B. Or a dict, as sample().
        """
        return self.sample(nets, batch)

    def features(self, nets: Any, batch: Batch) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        """Compute features in which generated and real samples are compared, with --eval-features recipe.

        The batch has real or generated samples as `images`, and their labels, conditions and arrays.

        Returns:
            Features (B, d) of numbers, or a pair of these and class probabilities (B, C), all 0 for a sample of no
            class; of these the Inception score and the modes are then computed, too.
        """
        raise NotImplementedError

    def evaluate(self, nets: Any, batch: Batch) -> dict[str, tf.Tensor]:
        """Measure the networks on held-out images; a recipe with this method has a holdout.

        Returns:
            Metrics by name, (B,) each, one number per image.
        """
        raise NotImplementedError

    @classmethod
    def evaluates(cls) -> bool:
        """Return whether the recipe has a method evaluate()."""
        return cls.evaluate is not Recipe.evaluate

    def complete(self, nets: Any, images: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Fill holes of images; hvdgan complete can be used with a recipe that has this method.

        Args:
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

    def translate(self, nets: Any, images: tf.Tensor, domain: str, random: Random) -> tf.Tensor:
        """Translate pictures; hvdgan translate can be used with a recipe that has this method.

        A recipe for wave files makes waves (1, T, C) of arrays of any length, such as spectrograms (1, N, F): hvdgan
        sample --data MELS.npz calls it.

        Args:
            images: pictures of the domain, or inputs of pairs, (B, H, W, C) float32 in [-1, 1], as large as those of
                the data, or with sides that are multiples of `translates_multiples_of`.
            domain: name of their domain; "" if the recipe has no domains.
            random: draws for them, as for draw().

        Returns:
            The pictures in the other domain, (B, H, W, C') float32 in [-1, 1], C' 1 or 3.
        """
        raise NotImplementedError

    @classmethod
    def translates(cls) -> bool:
        """Return whether the recipe has a method translate()."""
        return cls.translate is not Recipe.translate
