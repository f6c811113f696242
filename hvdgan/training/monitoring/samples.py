"""Grids of images: what the networks draw from fixed latents, and the real images beside them."""

import functools

import numpy as np
import tensorflow as tf

from hvdgan.cli.errors import RunError
from hvdgan.data import BadImage, Source
from hvdgan.recipe.draws import Random
from hvdgan.recipe.recipe import Recipe
from hvdgan.recipe.returned import check_methods, prepare, sampled
from hvdgan.training.state import TrainState
from hvdgan.training.steps.repeatable import refuse_unrepeatable

_GRID = 64
_FIXED_STEP = -1  # no training step: its draws are the samples' own


class Sampler:
    """Draws the same grid of samples again and again, so that two of them can be compared.

    Args:
        recipe: draws and shows the samples.
        state: the networks, averaged where the run averages them.
        source: real images for the recipes that need some, and for the grid of real ones.
        seed: of the run.
    """

    def __init__(self, recipe: Recipe, state: TrainState, source: Source, seed: int) -> None:
        self._recipe = recipe
        self._state = state
        self._source = source
        self._seed = seed
        self._function = tf.function(self._draw, autograph=False)

    def __call__(self) -> np.ndarray:
        """Images, (N, H, W, C) uint8, of the networks as they are now."""
        return to_uint8(self._function(*self._examples).numpy())

    def trace(self) -> None:
        """Trace what a call runs, without an image: a mistake in sample() must not wait until the first grid is due.

        Raises:
            Mistake: sample() is not there, fails, or returns no images.
            UserError: it draws what it would not draw again.
        """
        check_methods(type(self._recipe), "sample")
        count = len(_places(self._source))
        labels = None if self._source.labels is None else tf.TensorSpec((count,), tf.int32)
        traced = self._function.get_concrete_function(tf.TensorSpec((count, *self._source.shape), tf.uint8), labels)
        where = f"recipe {type(self._recipe).__name__}: sample()"
        refuse_unrepeatable(traced, self._state.tensors().values(), where)

    @property
    def real(self) -> np.ndarray:
        """Images of the data, (N, H, W, C) uint8; a pair side by side."""
        pixels, _ = self._examples
        return np.concatenate(np.split(pixels, 2, axis=-1), axis=2) if self._source.paired else pixels

    @functools.cached_property
    def _examples(self) -> tuple[np.ndarray, np.ndarray | None]:
        return _examples(self._source)

    def _draw(self, pixels: tf.Tensor, labels: tf.Tensor | None) -> tf.Tensor:
        count = pixels.shape[0]
        random = Random(self._seed, tf.constant(_FIXED_STEP, tf.int64), 0, count)
        prepared = prepare(self._recipe, pixels, labels, random, "for samples: ")
        return sampled(self._recipe, self._state.sampling_nets, prepared.batch("sample"))


def _places(source: Source) -> np.ndarray:
    """Which of its images are shown: up to 64, spread evenly, so that every class of a sorted folder is there."""
    return np.unique(np.linspace(0, len(source) - 1, _GRID).astype(np.int64))


def _examples(source: Source) -> tuple[np.ndarray, np.ndarray | None]:
    """These images as the source fetches them, but for those that cannot be read, and their labels."""
    images, indices = [], []
    for index in _places(source):
        try:
            images.append(source.fetch(int(index)))
        except BadImage:
            continue
        indices.append(index)
    if not images:
        raise RunError(f"--data {source.name}: none of {_GRID} images spread over the data can be read")
    return np.stack(images), None if source.labels is None else source.labels[indices]


def to_uint8(images: np.ndarray) -> np.ndarray:
    """Images in [-1, 1] as uint8, rounded and clipped."""
    return np.clip(np.rint((images + 1.0) * 127.5), 0, 255).astype(np.uint8)
