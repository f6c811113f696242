"""Draws grids of samples from fixed latents, and a grid of real samples to compare them with."""

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.data import BadImage, Samples
from hvdgan.data.batches import specs_of, stacked
from hvdgan.data.domains import named
from hvdgan.errors import UserError
from hvdgan.files.wav import save_wav
from hvdgan.recipe.batch import scoped, unpack
from hvdgan.recipe.contract import check_methods, prepare
from hvdgan.recipe.display import all_shown, save_samples, shown
from hvdgan.recipe.draws import Random
from hvdgan.recipe.outputs import Arrays, sampled
from hvdgan.recipe.recipe import Recipe
from hvdgan.training.record import Record
from hvdgan.training.repeatable import refuse_unrepeatable
from hvdgan.training.train_state import TrainState

_GRID = 64
_HEARD = 10
"""seconds of waves, one after another, that a page plays"""
_FAR = 16.0
"""size of a pixel that no generator returns for [-1, 1], also if nothing bounds it"""
_DARK = 64
"""of 255: pictures with such pixels are not those of a generator whose smallest number is 0, which is 128 of 255"""
_FIXED_STEP = -1  # not a training step, so that nothing else has the same draws


class Sampler:
    """Draws samples from the same latents each time, so that the grids of two steps can be compared."""

    def __init__(self, recipe: Recipe, state: TrainState, source: Samples, seed: int) -> None:
        self._recipe, self._state, self._source, self._seed = recipe, state, source, seed
        self._function = tf.function(self._draw, autograph=False)
        self.low = self.high = 0.0
        """the smallest and the largest number of the samples that were drawn last"""

    def __call__(self) -> dict[str, np.ndarray]:
        """Draw samples with the current weights, as all_shown() returns them."""
        made = {name: array.numpy() for name, array in self._function(self._examples).items()}
        self.low, self.high = float(made["images"].min()), float(made["images"].max())
        return all_shown(made, self._recipe.data)

    @property
    def doubt(self) -> str:
        """What is wrong with the range of the pictures that were drawn last; empty: nothing."""
        if not self._recipe.data.is_pictures:
            return ""
        is_far = max(-self.low, self.high) > _FAR
        if not is_far and not (0 <= self.low <= self.high <= 1 and self.real["images"].min() < _DARK):
            return ""
        return (
            f"warning: sample() returns pictures from {self.low:.3g} to {self.high:.3g}; expected [-1, 1], as networks "
            "see the data: let the generator end in tanh, or scale what it returns"
        )

    def trace(self) -> None:
        """Trace sample() without an image, so that a mistake in it is found before the first grid is due."""
        check_methods(type(self._recipe), "sample")
        count = min(len(_spread(each)) for each in self._source.domains.values())
        traced = self._function.get_concrete_function(specs_of(self._source, count))
        where = f"recipe {type(self._recipe).__name__}: sample()"
        refuse_unrepeatable(traced, where, self._state)

    @property
    def real(self) -> dict[str, np.ndarray]:
        """Real samples by all_shown(); pictures of a pair, or of all domains, side by side in one size."""
        spec = self._recipe.data
        images, inputs, _, arrays = unpack(self._examples, spec)
        real = all_shown({name: each.numpy() for name, each in {"images": images, **arrays}.items()}, spec)
        if not spec.is_pictures:
            return real
        others = [] if inputs is None else [inputs]
        for name, each in [*spec.domains.items()][1:]:
            if each.is_pictures and each.channels == spec.channels:
                others.append(unpack({"images": self._examples[f"{name}/images"]}, each).images)
        seen = [shown(tf.image.resize(each, images.shape[1:3], "nearest").numpy(), spec) for each in others]
        columns = [real["images"], *seen] if inputs is None else [*seen, real["images"]]
        return {**real, "images": np.concatenate(columns, axis=2)}

    @functools.cached_property
    def _examples(self) -> dict[str, np.ndarray]:
        """The chosen samples that can be read, and what describes them; equally many of each domain."""
        found = {name: _readable(each) for name, each in self._source.domains.items()}
        count = min(len(parts["images"]) for parts in found.values())
        return {key: part[:count] for name, parts in found.items() for key, part in named(name, parts).items()}

    def save(self, path: Path, samples: Mapping[str, np.ndarray]) -> None:
        """Write a grid of samples; arrays have the scale of the real ones. A WAV has the newest waves."""
        spec, real = self._recipe.data, self.real
        save_samples(path, samples, spec, real)
        if spec.rate is not None:
            for name, waves in (("newest", samples["images"]), ("real", real["images"])):
                heard = waves.reshape(-1, spec.channels)[: _HEARD * spec.rate]
                save_wav(path.with_name(f"{name}.wav"), heard, spec.rate)

    def _draw(self, data: dict[str, tf.Tensor]) -> Arrays:
        count = data["images"].shape[0]
        random = Random(self._seed, tf.constant(_FIXED_STEP, tf.int64), 0, count)
        batch = prepare(self._recipe, data, random, "for samples: ")
        return sampled(self._recipe, self._state.sampling_nets, scoped(batch, "sample"))


class Grids:
    """Writes grids to RUN_DIR/samples, on rank 0 alone.

    A thread, `executor`, encodes and writes them, because the steps of all ranks would wait for a slow disk.
    """

    def __init__(
        self,
        sampler: Sampler,
        folder: Path,
        record: Record,
        executor: Executor,
        wait: Callable[[Future[Any]], Any],
        *,
        is_root: bool,
    ) -> None:
        self._sampler, self._folder, self._record = sampler, folder, record
        self._executor, self._wait, self._is_root = executor, wait, is_root
        self._writing: Future[None] | None = None
        self._is_new = self._is_unseen = True

    def write_real(self, done: int) -> None:
        """Write the grid of real images of a run that begins after `done` steps."""
        if self._is_root:
            self._begin(done, "real", "real.png", self._sampler.real)

    def write(self, done: int) -> None:
        """Draw samples after `done` steps, and begin to write their grid."""
        if self._is_root:
            samples = self._sampler()
            if self._is_new and (doubt := self._sampler.doubt):
                self._record.say(doubt)
            self._is_new = False
            self._begin(done, "samples", f"step-{done:08d}.png", samples)

    def settle(self) -> None:
        """Wait until the last grid is written, or has failed."""
        if self._writing:
            self._wait(self._writing)
            self._writing = None

    def _begin(self, done: int, what: str, name: str, samples: Mapping[str, np.ndarray]) -> None:
        self.settle()
        self._writing = self._executor.submit(self._save, done, what, self._folder / name, samples)

    def _save(self, done: int, what: str, path: Path, samples: Mapping[str, np.ndarray]) -> None:
        # Of any kind: matplotlib raises a RuntimeError for a user without a home folder.
        with self._record.tolerant("samples", Exception):
            was_drawn = path.exists()
            self._sampler.save(path, samples)
            self._record.picture(done, what, path, repeated=was_drawn)
            if what == "samples" and done and self._is_unseen:
                self._is_unseen = False
                self._record.say(f"samples after {done:,} steps: {path}")


def _readable(source: Samples) -> dict[str, np.ndarray]:
    samples, indices, bad = [], [], list[BadImage]()
    for index in _spread(source):
        try:
            samples.append(source.fetch(int(index)))
            indices.append(index)
        except BadImage as error:
            bad.append(error)
    if not samples:
        cure = "repair them, or fill numbers that are missing (NaN) by --missing fill:0"
        raise UserError(f"--data {source.name}: none of {len(bad)} samples can be read; the first: {bad[0]}; {cure}")
    return {**stacked(samples), **source.facts(np.array(indices))}


def _spread(source: Samples) -> np.ndarray:
    """Choose up to 64 images, spread evenly, so that every class of a sorted folder is shown."""
    return np.unique(np.linspace(0, len(source) - 1, _GRID).astype(np.int64))
