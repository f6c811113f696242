"""Turns what networks return into pictures, and into numbers in the units of the data."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hvdgan.files.png import save_grid
from hvdgan.recipe.data_spec import DataSpec
from hvdgan.recipe.panels import Curves, Fields, Histogram, Panel, save_panels
from hvdgan.values.value_map import ValueMap

_VOLUMES = 25
"""volumes whose slices are shown, at most"""
_CURVES = 16
"""sequences that are shown, at most"""
_COLUMNS = 24
"""most columns of vectors that have a histogram each; longer vectors are rows of colours"""


def to_uint8(images: np.ndarray) -> np.ndarray:
    """Convert images from [-1, 1] to uint8, rounded and clipped."""
    return np.clip(np.rint((images + 1.0) * 127.5), 0, 255).astype(np.uint8)


def shown(samples: np.ndarray, spec: DataSpec) -> np.ndarray:
    """Samples as people see them: pictures as uint8, arrays as float32 in the units of the data."""
    if spec.is_pictures or spec.values is None:
        return to_uint8(samples)
    return spec.values.images.inverse(samples)


def restored(samples: np.ndarray, spec: DataSpec) -> np.ndarray:
    """Samples as shown() returns them, with NaN where the data have no numbers; those of crops have no such places."""
    return samples if spec.missing is None or spec.record_layout.crop is not None else spec.missing.restored(samples)


def save_samples(path: Path, samples: np.ndarray, spec: DataSpec, like: np.ndarray | None = None) -> None:
    """Write a PNG of samples as shown() returns them: pictures side by side, arrays as colours, curves or histograms.

    The scale has the least and largest numbers of `like`, samples of the data, or else of the samples themselves.
    """
    if samples.dtype == np.uint8 or spec.values is None:
        save_grid(path, samples)
        return
    save_panels(path, list(_panels(samples, samples if like is None else like, spec.values.images)))


def _panels(samples: np.ndarray, like: np.ndarray, value_map: ValueMap) -> Iterator[Panel]:
    """One panel for each channel of sequences and fields, or column of vectors; three for each channel of volumes."""
    units = value_map.units or ("",) * len(value_map.channels)
    if samples.ndim == 2 and samples.shape[1] > _COLUMNS:
        yield Fields("vectors, one a row", samples[None], (float(like.min()), float(like.max())))
        return
    for place, (name, unit) in enumerate(zip(value_map.channels, units, strict=True)):
        one = value_map.channel(place)
        noun = "column" if samples.ndim == 2 else "channel"
        title = f"{noun} {name}" if name.isdecimal() else name
        title += f" [{unit}]" if unit else ""
        numbers, limits = samples[..., place], (float(np.nanmin(like[..., place])), float(np.nanmax(like[..., place])))
        if numbers.ndim == 1:
            yield Histogram(title, numbers, like[..., place])
        elif numbers.ndim == 2:
            yield Curves(title, numbers[:_CURVES], limits)
        elif numbers.ndim == 3:
            yield Fields(title, numbers, limits, one.forward, one.inverse)
        else:
            for axis, along in enumerate(("depth", "height", "width"), 1):
                middle = np.take(numbers[:_VOLUMES], numbers.shape[axis] // 2, axis=axis)
                yield Fields(f"{title}, middle slice along {along}", middle, limits, one.forward, one.inverse)
