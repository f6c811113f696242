"""Charts of a page as inline SVG: lines over steps, with stages as bands, in the colours of the page's style."""

import dataclasses
import html
import io
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdgan.pages.metrics import LARGEST, Band
from hvdgan.pages.thinning import Series
from hvdgan.pages.untrusted import plain

COLOURS = 8
"""number of colours of lines in the page's style; further lines are dashed"""
_INCHES = (5.2, 2.5)
_LABEL = 16
_DASHES = ("-", "--", ":", "-.")
# Colours that no other part of a chart has; in the SVG they become variables of the page's style.
_INK, _GRID, _BAND, _MARK = "#0000b0", "#0000b1", "#0000b2", "#0000b3"
_VARIABLES = {_INK: "muted", _GRID: "rule", _BAND: "band", _MARK: "mark"}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hvdgan",
    "text.parse_math": False,
    "font.size": 9,
    "axes.formatter.useoffset": False,
    "axes.unicode_minus": False,
    "path.simplify_threshold": 0.2,
}


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


def number(value: float) -> str:
    """Return a number with four digits that count."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def draw(
    title: str,
    series: Sequence[Series],
    marks: Marks,
    prefix: str,
    labels: Sequence[str] = (),
    colours: Sequence[int] = (),
) -> Chart | None:
    """Draw a chart.

    Args:
        title: heading of the chart.
        series: curves; those without a value are left out.
        marks: stages and events.
        prefix: letters that make the ids of the chart its own in the page.
        labels: name of each curve; default: those of the series.
        colours: index of the colour of each curve; default: in their order.

    Returns:
        The chart; None if no curve has a value.
    """
    named = zip(series, labels or [each.name for each in series], colours or range(len(series)), strict=True)
    lines = [Line(label, each, colour) for each, label, colour in named if each.count]
    if not lines:
        return None
    curves = [line.series.curve() for line in lines]
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
    import matplotlib  # takes half a second
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.subplots()
        for line, (steps, values) in zip(lines, curves, strict=True):
            axes.plot(
                steps,
                np.clip(values, -LARGEST, LARGEST),
                color=f"#0000a{line.colour % COLOURS}",
                linestyle=_DASHES[line.colour // COLOURS % len(_DASHES)],
                linewidth=1.3,
                marker="o" if len(steps) <= 30 else "",
                markersize=3,
            )
        axes.set_yscale("log" if is_log else "linear")
        _mark(axes, marks)
        _dress(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _for_page(file.getvalue(), _in_words(title, lines, curves), prefix)


def _mark(axes: Any, marks: Marks) -> None:
    first, last = (-0.02 * marks.end, 1.02 * marks.end) if marks.end else axes.get_xlim()
    for index, band in enumerate(marks.bands if len(marks.bands) > 1 else ()):
        if index % 2:
            axes.axvspan(band.first, band.last, color=_BAND, linewidth=0, zorder=0)
        if (band.last - band.first) / (last - first) > 0.12:
            name = plain(band.name, _LABEL).partition("…")[0]
            middle = (band.first + band.last) / 2
            transform = axes.get_xaxis_transform()
            axes.text(middle, 1.02, name, transform=transform, ha="center", va="bottom", color=_INK, fontsize=8)
    for step in marks.restarts:
        axes.axvline(step, color=_MARK, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    if marks.skipped:
        low = [0.02] * len(marks.skipped)
        axes.plot(marks.skipped, low, "x", color=_MARK, markersize=4, transform=axes.get_xaxis_transform())
    if marks.best:
        axes.plot(*marks.best, "o", markersize=9, markerfacecolor="none", markeredgecolor=_MARK, markeredgewidth=1.5)
    axes.set_xlim(first, last)


def _dress(axes: Any) -> None:
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
    axes.tick_params(which="both", length=0, colors=_INK)
    axes.set_xlabel("step", color=_INK, fontsize=8, loc="right", labelpad=1)
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


def _for_page(text: str, words: str, prefix: str) -> str:
    """Make matplotlib's SVG part of a page: its own ids, the page's colours and font, and a text alternative."""
    text = text[text.index("<svg") :]
    text = re.sub(r"(?s)<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", text)
    kept = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda one: f' id="{prefix}-{one[1]}"' if one[1] in kept else "", text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", text)
    text = re.sub(r": #0000a(\d)", r": var(--c\1)", text)
    for colour, name in _VARIABLES.items():
        text = text.replace(f": {colour}", f": var(--{name})")
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+|\n", r"\1", path[0]), text)
    width, height = (round(inches * 72) for inches in _INCHES)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg role="img" aria-label="{html.escape(words)}" {size}>' + text[text.index(">") + 1 :].strip()


def by_kind(series: Sequence[Series]) -> dict[str, list[Series]]:
    """Group metrics that share an axis: those with the same last word, such as judge/loss and fool/loss; losses first.

    Args:
        series: metrics.
    """
    groups: dict[str, list[Series]] = {}
    for each in series:
        groups.setdefault(each.name.rpartition("/")[2], []).append(each)
    return dict(sorted(groups.items(), key=lambda group: (group[0] != "loss", group[0])))
