"""Charts of a page by Bokeh: lines over steps, with stages as bands, which the page's script makes answer."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from bokeh.core.json_encoder import serialize_json
from bokeh.document import Document
from bokeh.models import BoxZoomTool, ColumnDataSource, CrosshairTool, DataRange1d, Range1d, Span
from bokeh.plotting import figure
from bokeh.resources import Resources
from markupsafe import Markup

from hvdgan.runs.metrics import POINTS, Band, Series

COLOURS = 8
"""number of colours of lines in the page's style; further lines are dashed"""
_DASHES = ("solid", "dashed", "dotted", "dashdot")
_ALL_POINTS = 50_000
"""points of all curves of a page, of about 11 bytes each"""
_LOOK: dict[str, Any] = {"height": 220, "sizing_mode": "stretch_width", "window_axis": "x", "min_border_left": 52}
_LOOK |= {"tools": [], "toolbar_location": None, "outline_line_color": None}
_LOOK |= {"background_fill_color": None, "border_fill_color": None}
_MOST_MARKS = 200


def number(value: float) -> str:
    """Return a number with four digits that count."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def script() -> str:
    """Return the script of Bokeh, which draws the charts."""
    return Resources(mode="inline", components=["bokeh"]).js_raw[0]


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve of a chart; `colour` is the index of its colour, and beyond COLOURS of its dashes."""

    label: str
    series: Series
    colour: int

    @property
    def dash(self) -> str:
        """Dashes of the line, as Bokeh and CSS name them."""
        return _DASHES[self.colour // COLOURS % len(_DASHES)]

    @property
    def numbers(self) -> tuple[str, str, str]:
        """Last, smallest and largest value."""
        _, values = self.series.curve()
        return number(values[-1]), number(values.min()), number(values.max())


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart: its id, heading and lines, and whether its axis is, or may become, a logarithmic one."""

    id: str
    title: str
    lines: Sequence[Line]
    is_log: bool
    may_be_log: bool


class Charts:
    """The charts of a page, which share the axis of the steps and the crosshair.

    All curves, `series` in number, share the points of a page. Vertical lines stand at the steps of `marks`, by their
    dashes. The clock is steps and the seconds until them.
    """

    def __init__(
        self,
        series: int,
        *,
        bands: Sequence[Band] = (),
        marks: Mapping[str, Sequence[int]] = MappingProxyType({}),
        end: int = 0,
        images: int = 0,
        clock: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self.points = max(50, min(POINTS, _ALL_POINTS // max(1, series)))
        self.has_images, self.has_time = images > 0, clock is not None and len(clock[0]) > 0
        self.count = 0
        self._document = Document()
        self._range = Range1d(0, max(1, end))
        self._spans = Span(dimension="height", line_width=1, line_color="#888888", line_dash="dotted")
        self._bands = list(bands) if len(bands) > 1 else []
        shaded = [[band.first, band.last] for band in self._bands[1::2]]
        self._shaded = ColumnDataSource({"first": [each[0] for each in shaded], "last": [each[1] for each in shaded]})
        thinned = {dash: list(steps[:: len(steps) // _MOST_MARKS + 1]) for dash, steps in marks.items() if steps}
        self.marks = {dash: ColumnDataSource({"step": steps}) for dash, steps in thinned.items()}
        pairs = zip(*(each.tolist() for each in clock), strict=True) if clock else ()
        self._scale = {"images": images, "clock": [[0, 0], *([step, round(seconds, 1)] for step, seconds in pairs)]}

    def draw(self, title: str, lines: Sequence[Line], best: tuple[int, float] | None = None) -> Chart | None:
        """Draw a chart, with a circle at the step and value that are the best; None if no line has a point."""
        lines = [line for line in lines if line.series.count]
        if not lines:
            return None
        curves = [line.series.curve(self.points) for line in lines]
        low, high = (float(most([most(values.tolist()) for _, values in curves])) for most in (min, max))
        may_be_log = low > 0
        is_log = may_be_log and high / low > 100
        span = abs(high) / 5 or 1.0  # of a curve that is a straight line
        plot = figure(
            name=f"chart{self.count}", x_range=self._range, y_axis_type="log" if is_log else "linear", **_LOOK
        )
        plot.y_range = DataRange1d(only_visible=True, range_padding=0.08, default_span=span)
        strip = plot.vstrip(x0="first", x1="last", source=self._shaded, line_width=0, level="underlay")
        strip.tags = ["band"]
        for dash, source in self.marks.items():
            # Above the grid, which lies at round steps, as checkpoints do.
            plot.vspan(x="step", source=source, line_width=1, line_dash=dash, level="glyph").tags = ["mark"]
        drawn = [
            plot.line("step", "shown", source=self._source(*curve), line_width=1.6, line_dash=line.dash)
            for line, curve in zip(lines, curves, strict=True)
        ]
        for line, (steps, _), renderer in zip(lines, curves, drawn, strict=True):
            renderer.tags = ["line", line.colour % COLOURS]
            if len(steps) <= 30:
                dots = plot.scatter("step", "shown", source=renderer.data_source, size=5, line_width=0)
                dots.tags = ["dots", line.colour % COLOURS]
        if best:
            source = ColumnDataSource({"step": [best[0]], "shown": [best[1]]})
            circle = plot.scatter("step", "shown", source=source, size=12, fill_alpha=0, line_width=2)
            circle.tags = ["best"]
        plot.y_range.renderers = drawn
        zoom = BoxZoomTool(dimensions="width")
        plot.add_tools(zoom, CrosshairTool(overlay=self._spans))
        plot.toolbar.active_drag = zoom
        self._document.add_root(plot)
        self.count += 1
        return Chart(plot.name, title, lines, is_log, may_be_log)

    def as_json(self) -> Markup:
        """The charts as JSON that can stand in a page, for its script."""
        text = serialize_json({"document": self._document.to_json(deferred=False), **self._scale})
        return Markup(text.replace("<", "\\u003c"))

    def _source(self, steps: np.ndarray, values: np.ndarray) -> ColumnDataSource:
        """Return the points of a curve, which is broken where a whole stage has none of it."""
        at = self._gaps(steps)
        shown = np.insert(values, at, np.nan).astype(np.float32)
        return ColumnDataSource({"step": np.insert(steps, at, steps[at - 1]).astype(np.int32), "shown": shown})

    def _gaps(self, steps: np.ndarray) -> np.ndarray:
        """Return the places of a curve where a stage lies that has no point of it, and is long enough to have some."""
        least = 4 * (steps[-1] - steps[0]) / self.points
        long = [band for band in self._bands if band.last - band.first > least]
        ends = [band.last for band in long if not ((steps > band.first) & (steps <= band.last)).any()]
        at = np.unique(np.searchsorted(steps, np.array(ends, np.int64)))
        return at[(at > 0) & (at < len(steps))]


def by_kind(series: Sequence[Series]) -> dict[str, list[Series]]:
    """Group metrics that share a chart: the real and fake ones, and those with the same last word as judge/loss."""
    groups: dict[str, list[Series]] = {}
    for each in series:
        _, _, word = each.name.rpartition("/")
        kind = "real and fake" if word.startswith(("real", "fake")) else word
        groups.setdefault(kind, []).append(each)
    return dict(sorted(groups.items(), key=lambda group: (group[0] != "loss", group[0] != "real and fake", group[0])))
