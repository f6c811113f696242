"""Fills holes of photographs at their full size, by tiles, with a completion network that is convolutional."""

import copy
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.inference.filling import Photo, Window, seen_by
from hvdgan.inference.tiles import WholeFields
from hvdgan.inference.trained import TrainedNetworks
from hvdgan.recipe import Batch, Random, Recipe
from hvdgan.recipe.data_spec import ArraysByName
from hvdgan.settings.types import Weights


class WholeFilling:
    """Fills the hole of a photograph of any size with the networks of a run."""

    def __init__(self, trained: TrainedNetworks, weights: Weights, pixels: int) -> None:
        """`pixels` is the height and width of a tile."""
        self._pixels, self._channels = pixels, trained.recipe.data.channels
        self._fields = WholeFields(_completing(trained.recipe), trained.nets(weights), seed=0)

    def __call__(self, photo: Photo) -> tuple[Photo, np.ndarray]:
        """The photograph with all of it as its window, and the window filled, (H, W, C) float32 in [-1, 1]."""
        height, width = photo.hole.shape
        high, wide = self._fields.fitting((height, width))
        more = [(0, high - height), (0, wide - width)]
        images = np.pad(seen_by(self._channels, photo.pixels), [*more, (0, 0)], mode="symmetric")
        hole = np.pad(photo.hole, more)
        parts = {"images": images[None], "arrays/mask": hole[None, ..., None].astype(np.float32)}
        filled = np.zeros(images.shape, np.float32)
        for tile in self._fields.tiles(hole.shape, self._pixels):
            if hole[tile.region].any():
                filled[tile.region] = self._fields(0, tile, parts)
        return dataclasses.replace(photo, window=Window(0, 0, height, width)), filled[:height, :width]


def _completing(recipe: Recipe) -> Recipe:
    """The recipe with completed images as samples; the array `mask` of a sample is its hole, and nothing is drawn."""

    class Completing(type(recipe)):  # type: ignore[misc]
        def draw(self, random: Random) -> dict[str, tf.Tensor]:
            return {}

        def generate(self, nets: Any, batch: Batch) -> tf.Tensor:
            return self.complete(nets, batch.images, batch.arrays["mask"])

    other = copy.copy(recipe)
    other.__class__ = Completing
    shapes = ArraysByName({"mask": (*recipe.data.shape[:-1], 1)})
    other.data = dataclasses.replace(recipe.data, array_shapes=shapes)
    return other
