"""Turns what networks return into pictures, and into numbers in the units of the data."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hvdgan.files.png import save_grid
from hvdgan.files.replacing import whole_file
from hvdgan.recipe.data_spec import DataSpec
from hvdgan.values.value_map import ValueMap

_ABREAST = 3
_INCHES = 5.0
_TICKS = 7
_COLOURS = "viridis"
_BINS = 24


class Panel(Protocol):
    """A part of a picture."""

    @property
    def title(self) -> str: ...

    def draw(self, figure: Any, place: Any) -> None:
        """Draw into a figure of matplotlib, at one of its axes."""


@dataclasses.dataclass(frozen=True)
class Fields:
    """Fields that share a scale, laid out in a grid; each keeps its real aspect.

    Args:
        title: name of the numbers, with their unit.
        fields: numbers, (N, H, W).
        limits: the least and the largest number of the scale.
        forward, inverse: functions of an array (..., 1) between which the colours are spread evenly; None: evenly over
            the numbers themselves.
    """

    title: str
    fields: np.ndarray
    limits: tuple[float, float]
    forward: Callable[[np.ndarray], np.ndarray] | None = None
    inverse: Callable[[np.ndarray], np.ndarray] | None = None

    def draw(self, figure: Any, place: Any) -> None:
        place.set_axis_off()
        picture = place.imshow(_mosaic(self.fields), cmap=_COLOURS, norm=_norm(self), interpolation="nearest")
        ticks = picture.norm.inverse(np.linspace(0, 1, _TICKS))  # evenly spread over the colours
        figure.colorbar(picture, ax=place, shrink=0.8, ticks=ticks, format="%.3g")


@dataclasses.dataclass(frozen=True)
class Curves:
    """Sequences as curves over their places.

    Args:
        title: name of the numbers, with their unit.
        sequences: numbers, (N, W).
        limits: the least and the largest number of the axis.
    """

    title: str
    sequences: np.ndarray
    limits: tuple[float, float]

    def draw(self, figure: Any, place: Any) -> None:
        place.plot(self.sequences.T, linewidth=0.8)
        low, high = self.limits
        if low < high:
            place.set_ylim(low, high)


@dataclasses.dataclass(frozen=True)
class Histogram:
    """One column of a table: its numbers beside those of the data.

    Args:
        title: name of the column, with its unit.
        column: numbers, (N,).
        data: numbers of the data, (M,).
    """

    title: str
    column: np.ndarray
    data: np.ndarray

    def draw(self, figure: Any, place: Any) -> None:
        low, high = float(self.data.min()), float(self.data.max())
        bins = np.linspace(low, high, _BINS + 1) if low < high else _BINS
        place.hist(self.data, bins, density=True, color="0.8", label="data")
        place.hist(np.clip(self.column, low, high), bins, density=True, histtype="step", label="samples")
        place.legend(fontsize="small")


def save_panels(path: Path, panels: Sequence[Panel]) -> None:
    """Write panels, at least one, side by side to a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes half a second, and a display is not needed
    from matplotlib.figure import Figure

    columns = min(_ABREAST, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(_INCHES * columns, _INCHES * rows), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for place in axes[len(panels) :]:
        place.set_axis_off()
    for place, panel in zip(axes, panels, strict=False):
        panel.draw(figure, place)
        place.set_title(panel.title, fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        figure.savefig(partial, metadata={"Software": None})


def _mosaic(fields: np.ndarray) -> np.ma.MaskedArray:
    """Fields side by side, with a gap of one number without colour between two."""
    count, height, width = fields.shape
    columns = max(1, round(math.sqrt(count * height / width)))
    rows = math.ceil(count / columns)
    framed = np.full((rows * columns, height + 1, width + 1), np.nan, np.float32)
    framed[:count, :height, :width] = fields
    grid = framed.reshape(rows, columns, height + 1, width + 1).transpose(0, 2, 1, 3)
    return np.ma.masked_invalid(grid.reshape(rows * (height + 1), columns * (width + 1))[:-1, :-1])


def _norm(panel: Fields) -> Any:
    from matplotlib.colors import FuncNorm, Normalize

    low, high = panel.limits
    if not low < high:
        low, high = low - 0.5, high + 0.5
    if panel.forward is None or panel.inverse is None:
        return Normalize(low, high)

    def applied(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda numbers: function(np.asarray(numbers, np.float64)[..., None])[..., 0]

    return FuncNorm((applied(panel.forward), applied(panel.inverse)), low, high)


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
