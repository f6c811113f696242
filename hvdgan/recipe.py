"""What a recipe is: networks, losses and stages of one GAN, and nothing of ranks."""

import dataclasses
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar, TypeGuard

import keras
import tensorflow as tf

from hvdgan.config import DataSpec
from hvdgan.draws import Random
from hvdgan.errors import UserError
from hvdgan.mistakes import call, of_module, similar
from hvdgan.stages import Stage


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """A recipe without options of its own."""


class Batch:
    """This rank's part of a global batch, with whatever the recipe's draw() added as attributes.

    images: (B, image_size, image_size, channels) float32 in [-1, 1].
    labels: (B,) int32, or None where the data has none.
    inputs: (B, image_size, image_size, channels) float32 in [-1, 1], what goes with each image where the data is
        paired; else None.
    random: draws of the running update; see hvdgan.draws.Random.
    augment: called with images (B, H, W, C) and a key, returns them as the discriminator may see them: with the
        run's differentiable augmentations, drawn anew for each key, or unchanged where it has none.
    truncation: for samples, how far styles may be from their mean, in [0, 1]; 1: not limited.
    """

    def __init__(
        self,
        images: tf.Tensor,
        labels: tf.Tensor | None,
        random: Random,
        drawn: dict[str, tf.Tensor],
        *,
        inputs: tf.Tensor | None = None,
        augment: Callable[[tf.Tensor, str], tf.Tensor] = lambda images, key: images,
        truncation: float = 1.0,
    ) -> None:
        self.images = images
        self.labels = labels
        self.random = random
        self.inputs = inputs
        self.augment = augment
        self.truncation = truncation
        self.__dict__.update(drawn)

    def __getattr__(self, name: str) -> tf.Tensor:
        raise AttributeError(
            f"the batch has no {name}; it has {', '.join(sorted(self.__dict__))}; draw() can add to it"
        )


def split_pairs(pixels: tf.Tensor, *, paired: bool) -> tuple[tf.Tensor | None, tf.Tensor]:
    """What the data gives as a batch's inputs and images.

    Args:
        pixels: (B, H, W, C) uint8, or (B, H, W, 2C) where paired, the inputs' channels first.
        paired: the recipe's.

    Returns:
        Inputs, None where not paired, and images, each (B, H, W, C) float32 in [-1, 1].
    """
    values = tf.cast(pixels, tf.float32) / 127.5 - 1.0
    if not paired:
        return None, values
    inputs, images = tf.split(values, 2, axis=-1)
    return inputs, images


class Recipe:
    """One GAN. Subclass it, give `Options` a frozen dataclass, and name it on the command line.

    Args:
        options: an instance of the class's Options, from the command line.
        data: what the images are like.
    """

    Options: ClassVar[type] = NoOptions
    ema: ClassVar[Sequence[str]] = ()
    """names of the networks whose weights are averaged over time and draw the samples"""
    may_change: ClassVar[Sequence[str]] = ()
    """names of the options that a resumed run may change, such as the steps of the last stage"""
    paired: ClassVar[bool] = False
    """whether each image comes with an input image (batch.inputs), as in the translation of one into the other"""
    shows_data: ClassVar[bool] = False
    """whether sample() starts from images of the data, not from latents alone"""
    truncates: ClassVar[bool] = False
    """whether sample() heeds batch.truncation"""

    def __init__(self, options: Any, data: DataSpec) -> None:
        self.options = options
        self.data = data

    def networks(self) -> dict[str, keras.Model]:
        """The networks by name, built (their variables exist)."""
        raise NotImplementedError

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        """One optimizer per network, by the network's name."""
        raise NotImplementedError

    def stages(self) -> list[Stage]:
        """The stages in order."""
        raise NotImplementedError

    def draw(self, random: Random) -> dict[str, tf.Tensor]:
        """What each step draws once for all its updates: latents, masks; the names become attributes of the batch."""
        return {}

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        """Images to look at, (N, H, W, C) in [-1, 1]; networks run in inference mode, averaged where `ema` says so."""
        raise NotImplementedError

    def evaluate(self, nets: Any, batch: Batch) -> dict[str, tf.Tensor]:
        """Metrics of held-out images by name, (B,) each, one number per image; networks as in sample()."""
        raise NotImplementedError

    @classmethod
    def evaluates(cls) -> bool:
        """Whether the recipe has metrics of held-out images."""
        return cls.evaluate is not Recipe.evaluate


def load_recipe(name: str) -> type[Recipe]:
    """The recipe class of this name: a file of hvdgan.recipes, or package.module:Attribute, also in the working folder.

    Raises:
        UserError: there is no such recipe, or it is no Recipe.
    """
    if not re.fullmatch(r"\w+|\w+(\.\w+)*:\w+", name):
        raise UserError(
            f'--recipe "{name}": expected one of {", ".join(known_recipes())}, or your own as package.module:Attribute'
        )
    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py"):
        raise UserError(f"--recipe {name}: expected package.module:Attribute, as in {module_name[:-3]}:{attribute}")
    if not attribute:
        module_name, attribute = f"hvdgan.recipes.{name}", "RECIPE"
    elif os.getcwd() not in sys.path:
        # `python -m` does this itself; a console script or a test may not.
        sys.path.insert(0, os.getcwd())
    with of_module(f"--recipe {name}", module_name):
        module = call(_import, module_name, name, what="its import")
    found = getattr(module, attribute, None)
    if not _is_recipe(found):
        there = similar(attribute, [key for key, value in vars(module).items() if _is_recipe(value)])
        raise UserError(
            f"--recipe {name}: {attribute} in {module_name} is not a subclass of hvdgan.recipe.Recipe; the module is "
            f"{module.__file__}{there}"
        )
    return found


def _is_recipe(value: Any) -> TypeGuard[type[Recipe]]:
    return isinstance(value, type) and issubclass(value, Recipe)


def _import(module_name: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not (error.name and f"{module_name}.".startswith(f"{error.name}.")):
            raise  # the module is there, and imports something that is not
        raise UserError(
            f"--recipe {name}: there is no module {module_name}; known recipes: {', '.join(known_recipes())}; "
            "your own is named package.module:Attribute"
        ) from error


def known_recipes() -> list[str]:
    """The names of hvdgan's own recipes."""
    folder = os.path.join(os.path.dirname(__file__), "recipes")
    return sorted(name[:-3] for name in os.listdir(folder) if name.endswith(".py") and not name.startswith("_"))
