"""Turns what networks return into pictures, and into numbers in the units of the data."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.files.png import save_grid
from hvdgan.files.replacing import whole_file
from hvdgan.recipe.data_spec import DataSpec
from hvdgan.values.sample_values import may_be_pictures
from hvdgan.values.value_map import ValueMap

_ABREAST = 3
_INCHES = 5.0
_TICKS = 7
_BINS = 24


Panel = tuple[str, Callable[[Any, Any], None]]
"""title of a part of a picture, with a unit, and a function that draws it into a figure at one of its axes"""


def fields_panel(
    title: str, fields: np.ndarray, limits: tuple[float, float], value_map: ValueMap | None = None, columns: int = 0
) -> Panel:
    """Fields (N, H, W) of one scale in a grid, each with its aspect; the map spreads the colours over the numbers."""

    def draw(figure: Any, place: Any) -> None:
        place.set_axis_off()
        picture = place.imshow(
            _mosaic(fields, columns), cmap="viridis", norm=_norm(limits, value_map), interpolation="nearest"
        )
        ticks = picture.norm.inverse(np.linspace(0, 1, _TICKS))  # evenly spread over the colours
        figure.colorbar(picture, ax=place, shrink=0.8, ticks=ticks, format="%.3g")

    return title, draw


def _curves_panel(title: str, sequences: np.ndarray, limits: tuple[float, float]) -> Panel:
    """Sequences (N, W) as curves over their places."""

    def draw(_: Any, place: Any) -> None:
        place.plot(sequences.T, linewidth=0.8)
        if limits[0] < limits[1]:
            place.set_ylim(*limits)

    return title, draw


def _histogram_panel(title: str, column: np.ndarray, data: np.ndarray) -> Panel:
    """One column (N,) of a table, beside that of the data."""

    def draw(_: Any, place: Any) -> None:
        low, high = float(data.min()), float(data.max())
        bins = np.linspace(low, high, _BINS + 1) if low < high else _BINS
        place.hist(data, bins, density=True, color="0.8", label="data")
        place.hist(np.clip(column, low, high), bins, density=True, histtype="step", label="samples")
        place.legend(fontsize="small")

    return title, draw


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
    for place, (title, draw) in zip(axes, panels, strict=False):
        draw(figure, place)
        place.set_title(title, fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        figure.savefig(partial, metadata={"Software": None})


def _mosaic(fields: np.ndarray, columns: int = 0) -> np.ma.MaskedArray:
    """Fields in columns, 0: in a square about, with a gap of one number without colour between two."""
    count, height, width = fields.shape
    columns = columns or max(1, round(math.sqrt(count * height / width)))
    rows = math.ceil(count / columns)
    framed = np.full((rows * columns, height + 1, width + 1), np.nan, np.float32)
    framed[:count, :height, :width] = fields
    grid = framed.reshape(rows, columns, height + 1, width + 1).transpose(0, 2, 1, 3)
    return np.ma.masked_invalid(grid.reshape(rows * (height + 1), columns * (width + 1))[:-1, :-1])


def _norm(limits: tuple[float, float], value_map: ValueMap | None) -> Any:
    from matplotlib.colors import FuncNorm, Normalize

    low, high = limits
    if not low < high:
        low, high = low - 0.5, high + 0.5
    if value_map is None:
        return Normalize(low, high)

    def applied(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda numbers: function(np.asarray(numbers, np.float64)[..., None])[..., 0]

    return FuncNorm((applied(value_map.forward), applied(value_map.inverse)), low, high)


_VOLUMES = 25
"""volumes whose slices are shown, at most"""
_CURVES = 16
"""sequences and spectrograms that are shown, at most"""
_FAINTEST = 1e-4
"""amplitude of the faintest sound that a spectrogram shows"""
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


def all_shown(made: Mapping[str, np.ndarray], spec: DataSpec) -> dict[str, np.ndarray]:
    """Samples by shown(), with NaN where the data have no numbers, and further arrays in the units of the data.

    Samples of crops have no such places, and arrays that the data do not have stay as they are.
    """
    images = shown(made["images"], spec)
    if spec.missing is not None and spec.record_layout.crop is None:
        images = spec.missing.restored(images)
    others = {name: array for name, array in made.items() if name != "images"}
    known = {name: np.asarray(spec.physical(others[name], name)) for name in others if name in spec.array_shapes}
    return {"images": images, **others, **known}


def save_samples(
    path: Path, made: Mapping[str, np.ndarray], spec: DataSpec, like: Mapping[str, np.ndarray] | None = None
) -> None:
    """Write a PNG of samples as all_shown() returns them: pictures side by side, arrays as colours, curves, histograms.

    Further arrays (N, H, W, C), C 1 or 3, stand beside the samples, and others are left out. A scale has the least and
    largest numbers of `like`, samples of the data, or else of the samples themselves. Waves are shown as spectrograms.
    """
    samples, like = made["images"], {**made, **(like or {})}
    if spec.rate is not None:
        levels, of_like = (spectrograms(each["images"][:_CURVES]) for each in (made, like))
        title = f"spectrograms [dB], 0 to {spec.rate / 2000:g} kHz over {samples.shape[1] / spec.rate:.3g} s"
        save_panels(path, [fields_panel(title, levels, (float(of_like.min()), float(of_like.max())))])
        return
    others = {name: array for name, array in made.items() if name != "images" and may_be_pictures(array.shape[1:])}
    limits = {name: (float(np.nanmin(like[name])), float(np.nanmax(like[name]))) for name in others}
    if samples.dtype == np.uint8 or spec.values is None:
        beside = [_as_pixels(array, samples.shape[1:3], limits[name]) for name, array in others.items()]
        channels = max(each.shape[-1] for each in (samples, *beside))
        columns = [np.broadcast_to(each, (*each.shape[:-1], channels)) for each in (samples, *beside)]
        save_grid(path, np.concatenate(columns, axis=2))
        return
    panels = list(_panels(samples, like["images"], spec.values.images))
    for name, array in others.items():
        titles = [name] if array.shape[-1] == 1 else [f"{name}, channel {place}" for place in range(array.shape[-1])]
        panels += [fields_panel(title, array[..., place], limits[name]) for place, title in enumerate(titles)]
    save_panels(path, panels)


def spectrograms(waves: np.ndarray) -> np.ndarray:
    """Levels (N, F, T') of waves (N, T, 1) in dB, from -80 up, the highest frequency first; F is about T'."""
    length = 2 ** max(3, round(math.log2(waves.shape[1]) / 2 + 1))
    padded = np.pad(waves[..., 0], ((0, 0), (length // 2, length // 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, length, axis=1)[:, :: length // 4]
    sizes = np.abs(np.fft.rfft(windows * np.hanning(length))) / (length / 4)
    return 20 * np.log10(np.maximum(sizes, _FAINTEST)).transpose(0, 2, 1)[:, ::-1]


def _as_pixels(array: np.ndarray, size: Sequence[int], limits: tuple[float, float]) -> np.ndarray:
    """An array (N, h, w, C) as pictures (N, H, W, C) uint8 of a size, from black to white within the limits."""
    rows, columns = (np.arange(many) * few // many for many, few in zip(size, array.shape[1:3], strict=True))
    low, high = limits
    return to_uint8((array[:, rows][:, :, columns] - low) * (2.0 / max(high - low, 1e-12)) - 1.0)


def _panels(samples: np.ndarray, like: np.ndarray, value_map: ValueMap) -> Iterator[Panel]:
    """One panel for each channel of sequences and fields, or column of vectors; three for each channel of volumes."""
    units = value_map.units or ("",) * len(value_map.channels)
    if samples.ndim == 2 and samples.shape[1] > _COLUMNS:
        yield fields_panel("vectors, one a row", samples[None], (float(like.min()), float(like.max())))
        return
    for place, (name, unit) in enumerate(zip(value_map.channels, units, strict=True)):
        one = value_map.channel(place)
        noun = "column" if samples.ndim == 2 else "channel"
        title = f"{noun} {name}" if name.isdecimal() else name
        title += f" [{unit}]" if unit else ""
        numbers, limits = samples[..., place], (float(np.nanmin(like[..., place])), float(np.nanmax(like[..., place])))
        if numbers.ndim == 1:
            yield _histogram_panel(title, numbers, like[..., place])
        elif numbers.ndim == 2:
            yield _curves_panel(title, numbers[:_CURVES], limits)
        elif numbers.ndim == 3:
            yield fields_panel(title, numbers, limits, one)
        else:
            for axis, along in enumerate(("depth", "height", "width"), 1):
                middle = np.take(numbers[:_VOLUMES], numbers.shape[axis] // 2, axis=axis)
                columns = math.ceil(math.sqrt(len(middle)))  # a volume has one place in the three panels
                yield fields_panel(f"{title}, middle slice along {along}", middle, limits, one, columns)
