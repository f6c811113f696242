"""Charts of a page as inline SVG: lines over steps, with stages as bands, in the colours of the page's style."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdgan.pages.drawing import BAND, COLOURS, INK, MARK, RULE, colour, number, picture
from hvdgan.pages.reading.metrics import LARGEST, Band
from hvdgan.pages.reading.thinning import POINTS, Series
from hvdgan.pages.reading.untrusted import plain

_LABEL = 16
_DASHES = {"-": "none", "--": "5 2", ":": "1.5 1.5", "-.": "6 2 1.5 2"}  # of matplotlib, and of the key in the legend


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve of a chart, and what stands in its legend.

    Args:
        label: name of the curve.
        series: points.
        colour: index of its colour.
    """

    label: str
    series: Series
    colour: int

    @property
    def style(self) -> str:
        """Style of its line, for matplotlib: dashed where colours repeat."""
        return list(_DASHES)[self.colour // COLOURS % len(_DASHES)]

    @property
    def key(self) -> str:
        """Lengths of the dashes of its key in the legend, as SVG has them."""
        return _DASHES[self.style]

    @property
    def numbers(self) -> tuple[str, str, str]:
        """Latest, least and greatest value."""
        _, values = self.series.curve()
        return number(self.series.last), number(float(values.min())), number(float(values.max()))


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart and its legend.

    Args:
        title: heading of the chart.
        svg: picture, safe to put in a page.
        lines: curves, for the legend.
        is_log: True if its axis is logarithmic.
    """

    title: str
    svg: str
    lines: Sequence[Line]
    is_log: bool


@dataclasses.dataclass(frozen=True)
class Marks:
    """What is marked in a chart besides its lines.

    Args:
        bands: stages.
        restarts: steps at which the run was resumed.
        skipped: steps of skipped updates.
        best: step and value of the best checkpoint; None: not in this chart.
        end: step at which all charts of the page end; 0: that of the lines.
    """

    bands: Sequence[Band] = ()
    restarts: Sequence[int] = ()
    skipped: Sequence[int] = ()
    best: tuple[int, float] | None = None
    end: int = 0


def draw(
    title: str,
    series: Sequence[Series],
    marks: Marks,
    prefix: str,
    labels: Sequence[str] = (),
    colours: Sequence[int] = (),
    points: int = POINTS,
) -> Chart | None:
    """Draw a chart."""
    named = zip(series, labels or [each.name for each in series], colours or range(len(series)), strict=True)
    lines = [Line(label, each, colour) for each, label, colour in named if each.count]
    if not lines:
        return None
    curves = [line.series.curve(points) for line in lines]
    values = np.concatenate([values for _, values in curves])
    is_log = bool((values > 0).all()) and float(values.max()) / float(values.min()) > 100
    return Chart(title, _svg(title, lines, curves, marks, prefix, is_log=is_log), lines, is_log)


def _svg(
    title: str,
    lines: Sequence[Line],
    curves: Sequence[tuple[np.ndarray, np.ndarray]],
    marks: Marks,
    prefix: str,
    *,
    is_log: bool,
) -> str:
    def paint(axes: Any) -> None:
        for line, (steps, values) in zip(lines, curves, strict=True):
            at = _gaps(steps, marks.bands)
            axes.plot(
                np.insert(steps.astype(float), at, np.nan),
                np.insert(np.clip(values, -LARGEST, LARGEST), at, np.nan),
                color=colour(line.colour),
                linestyle=line.style,
                linewidth=1.3,
                marker="o" if len(steps) <= 30 else "",
                markersize=3,
            )
        axes.set_yscale("log" if is_log else "linear")
        _mark(axes, marks)
        _dress(axes)

    return picture(paint, f"{_in_words(title, lines, curves)}{_marks_in_words(marks)}", prefix)


def _gaps(steps: np.ndarray, bands: Sequence[Band]) -> np.ndarray:
    """Return the places of a curve where it is broken: where a whole stage has no point of it.

    A stage that is shorter than two parts of a thinned curve may have lost its points, and does not break it.
    """
    least = 4 * (steps[-1] - steps[0]) / POINTS
    long = [band for band in bands if band.last - band.first > least]
    ends = [band.last for band in long if not ((steps > band.first) & (steps <= band.last)).any()]
    return np.unique(np.searchsorted(steps, ends))


def _mark(axes: Any, marks: Marks) -> None:
    first, last = (-0.02 * marks.end, 1.02 * marks.end) if marks.end else axes.get_xlim()
    for index, band in enumerate(marks.bands if len(marks.bands) > 1 else ()):
        if index % 2:
            axes.axvspan(band.first, band.last, color=BAND, linewidth=0, zorder=0)
        if (band.last - band.first) / (last - first) > 0.12:
            name = plain(band.name, _LABEL).partition("…")[0]
            middle = (band.first + band.last) / 2
            transform = axes.get_xaxis_transform()
            axes.text(middle, 1.02, name, transform=transform, ha="center", va="bottom", color=INK, fontsize=8)
    for step in marks.restarts:
        axes.axvline(step, color=MARK, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    if marks.skipped:
        low = [0.02] * len(marks.skipped)
        axes.plot(marks.skipped, low, "x", color=MARK, markersize=4, transform=axes.get_xaxis_transform())
    if marks.best:
        axes.plot(*marks.best, "o", markersize=9, markerfacecolor="none", markeredgecolor=MARK, markeredgewidth=1.5)
    axes.set_xlim(first, last)


def _dress(axes: Any) -> None:
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.set_xlabel("step", color=INK, fontsize=8, loc="right", labelpad=1)
    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: number(value))  # matplotlib's own needs its mathematical text
    axes.yaxis.set_minor_formatter(lambda value, _: "")


def _in_words(title: str, lines: Sequence[Line], curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> str:
    """Say what the chart shows, for readers who do not see it."""
    parts = [
        f"{plain(line.label, 60)} from {number(values[0])} at step {steps[0]:,} to {number(values[-1])} at step "
        f"{steps[-1]:,}, least {number(values.min())}, greatest {number(values.max())}"
        for line, (steps, values) in itertools.islice(zip(lines, curves, strict=True), 8)
    ]
    more = f"; and {len(lines) - 8} more" if len(lines) > 8 else ""
    return f"Line chart of {plain(title, 60)} over the steps: {'; '.join(parts)}{more}."


def _marks_in_words(marks: Marks) -> str:
    """Say what is marked in a chart besides its lines."""

    def listed(steps: Sequence[int]) -> str:
        shown = ", ".join(f"{step:,}" for step in steps[:8])
        return f"{shown} and {len(steps) - 8:,} more" if len(steps) > 8 else shown

    found = [f"Resumed at step {listed(marks.restarts)}"] if marks.restarts else []
    found += [f"Skipped updates at step {listed(marks.skipped)}"] if marks.skipped else []
    found += [f"Best checkpoint at step {marks.best[0]:,}"] if marks.best else []
    return "".join(f" {each}." for each in found)


def by_kind(series: Sequence[Series]) -> dict[str, list[Series]]:
    """Group metrics that share an axis, those with the same last word as judge/loss and fool/loss; losses first."""
    groups: dict[str, list[Series]] = {}
    for each in series:
        groups.setdefault(each.name.rpartition("/")[2], []).append(each)
    return dict(sorted(groups.items(), key=lambda group: (group[0] != "loss", group[0])))
