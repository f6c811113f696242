"""Metrics of the images held out, over all ranks."""

import math

import numpy as np
import tensorflow as tf

from hvdgan.config import Config
from hvdgan.data import BadImage, Source
from hvdgan.distributed import Ranks
from hvdgan.draws import Random
from hvdgan.recipe import Batch, Recipe, split_pairs
from hvdgan.state import TrainState

_FIRST_STEP = -2  # no training step, nor the samples': what is drawn here is the same at every evaluation


class Evaluator:
    """Runs a recipe's evaluate() over all held-out images, each once, with the same draws every time.

    Args:
        recipe: measures.
        state: the networks, averaged where the run averages them.
        source: the images held out.
        ranks: that share the images.
        config: seed and batch size are used.
    """

    def __init__(self, recipe: Recipe, state: TrainState, source: Source, ranks: Ranks, config: Config) -> None:
        self._recipe = recipe
        self._state = state
        self._source = source
        self._ranks = ranks
        self._config = config
        self._function = tf.function(self._measure, autograph=False)

    def __call__(self) -> dict[str, float]:
        """The means by name over all images that can be read; every rank calls it and gets them."""
        sums: dict[str, float] = {}
        count = 0
        size = self._config.global_batch_size
        for number in range(math.ceil(len(self._source) / size)):
            first, last = self._ranks.slice_of(size)
            indices = np.arange(number * size + first, number * size + last)
            images, readable = self._fetch(indices)
            data = {"images": tf.constant(images)}
            if self._source.labels is not None:
                data["labels"] = tf.constant(self._source.labels[np.minimum(indices, len(self._source) - 1)])
            for name, values in self._function(tf.constant(_FIRST_STEP - number, tf.int64), data).items():
                sums[name] = sums.get(name, 0.0) + float(np.sum(values.numpy(), where=readable, dtype=np.float64))
            count += int(readable.sum())
        everyones = self._ranks.gather([sums, count], "evaluation")
        total = max(1, sum(count for _, count in everyones))
        return {name: math.fsum(sums[name] for sums, _ in everyones) / total for name in sums}

    def _fetch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images (B, H, W, C) and whether each is one of the source, rather than a filling."""
        source = self._source
        images = np.zeros((len(indices), *source.shape), np.uint8)
        readable = indices < len(source)
        for place, index in enumerate(indices[readable]):
            try:
                images[place] = source.fetch(int(index))
            except BadImage:
                readable[place] = False
        return images, readable

    def _measure(self, step: tf.Tensor, data: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        config, ranks = self._config, self._ranks
        first, last = ranks.slice_of(config.global_batch_size)
        random = Random(config.seed, step, first, last - first, config.global_batch_size)
        inputs, images = split_pairs(data["images"], paired=self._recipe.paired)
        drawn = self._recipe.draw(random.scoped("draw"))
        batch = Batch(images, data.get("labels"), random.scoped("evaluate"), drawn, inputs=inputs)
        nets = self._state.sampling_nets
        return {f"eval/{name}": tf.cast(v, tf.float32) for name, v in self._recipe.evaluate(nets, batch).items()}
