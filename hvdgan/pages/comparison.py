"""The page of several runs: settings that differ, curves over each other, latest samples side by side."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdgan.checkpoints.direction import mode_of
from hvdgan.cli.errors import UserError
from hvdgan.pages import settings, verdict
from hvdgan.pages.curves import Chart, Marks, draw
from hvdgan.pages.drawing import number
from hvdgan.pages.pictures import Picture, load
from hvdgan.pages.reading import run_folder
from hvdgan.pages.reading.metrics import Band
from hvdgan.pages.reading.run_folder import RunFacts
from hvdgan.pages.reading.thinning import POINTS, Series
from hvdgan.pages.reading.untrusted import Folder
from hvdgan.pages.template import fill

_MOST_CHARTS = 16
_ALL_PICTURES = 2_000_000
_ALL_POINTS = 100_000
_MOST_RUNS_DRAWN = 32
_MOST_GRIDS_TRIED = 5


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """What the page keeps of a run.

    Args:
        name: name of the run folder, as short as it can be and still differ from the others.
        config: settings; empty if they cannot be read.
        series: curves by the name of the metric.
        bands: stages.
        state: sentence of the verdict.
        folder: run folder, with remarks about what could not be read.
        grids: step and name of the latest grids of samples, the newest first.
        images_per_sec: mean of the run; None if unknown.
    """

    name: str
    config: dict[str, Any]
    series: dict[str, Series]
    bands: list[Band]
    state: str
    folder: Folder
    grids: list[tuple[int, str]]
    images_per_sec: float | None

    def best(self, metric: str, mode: str) -> tuple[float, int] | None:
        """Return the best value of a metric and its step; None if the run has none."""
        series = self.series.get(metric)
        if series is None or not series.count:
            return None
        steps, values = series.curve()
        at = int(values.argmin() if mode == "min" else values.argmax())
        return float(values[at]), int(steps[at])


def make(paths: Sequence[Path], sort_by: str | None, mode: str | None) -> str:
    """Make the page of several runs.

    Args:
        paths: run folders.
        sort_by: name of the metric by which they are sorted; None: --best-metric of the runs, else one they share.
        mode: min or max, for the best value first; None: --best-mode of a run whose --best-metric it is, else what
            mode_of() says.

    Raises:
        UserError: no run has that metric.
    """
    runs = [
        _compared(run_folder.read(path, verify=False), name) for path, name in zip(paths, _names(paths), strict=True)
    ]
    metric = _metric(runs, sort_by)
    mode = mode or _mode(runs, metric)
    if metric:
        sign = -1.0 if mode == "max" else 1.0
        found = {run.name: run.best(metric, mode) for run in runs}
        runs.sort(key=lambda run: sign * best[0] if (best := found[run.name]) else float("inf"))
    drawn = runs[:_MOST_RUNS_DRAWN]
    points = min(POINTS, _ALL_POINTS // (_MOST_CHARTS * len(drawn)))
    charts, left_out = _charts(drawn, points)
    differing = settings.differing([run.config for run in runs if run.config])
    return fill(
        "comparison.html.j2",
        heading=f"{len(runs)} runs compared",
        metric=metric,
        mode=mode,
        rows=[_row(run, metric, mode) for run in runs],
        drawn=len(drawn),
        differing=_differing(runs, differing[: settings.MOST]),
        settings_left_out=len(differing[settings.MOST :]),
        charts=charts,
        left_out=left_out,
        points=points,
        pictures=_pictures(drawn),
        remarks=[
            f"{run.name}: {remark}"
            for run in runs
            for remark in [*run.folder.remarks, *([] if run.config else ["its settings cannot be read"])]
        ],
    )


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each path, with as many parts before it as make all names differ."""
    parts = [path.resolve().parts for path in paths]
    longest = max(map(len, parts))
    for count in range(1, longest):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _compared(run: RunFacts, name: str) -> ComparedRun:
    grids, state = run.grids[: -_MOST_GRIDS_TRIED - 1 : -1], verdict.judge(run).sentence
    config, measured = run.config or {}, run.metrics
    return ComparedRun(name, config, measured.series, measured.bands, state, run.folder, grids, run.images_per_sec)


def _metric(runs: Sequence[ComparedRun], sort_by: str | None) -> str:
    """Return the metric by which runs are sorted; empty if no run has its --best-metric, and they share none."""
    shared = [name for name in runs[0].series if all(name in run.series for run in runs)]
    if sort_by is not None:
        if not any(sort_by in run.series for run in runs):
            raise UserError(
                f"--sort-by {sort_by}: no run has this metric; they share {', '.join(shared[:20]) or 'none'}"
            )
        return sort_by
    chosen = [name for run in runs if isinstance(name := run.config.get("best_metric"), str)]
    wanted = [
        *(name for name in chosen if any(name in run.series for run in runs)),  # one may have died before it had any
        *(name for name in shared if name.startswith("eval/")),
        *(name for name in shared if name.endswith("/loss")),
    ]
    return next(iter(wanted), "")


def _mode(runs: Sequence[ComparedRun], metric: str) -> str:
    """Return --best-mode of the first run whose --best-metric it is, else what mode_of() says."""
    modes = [run.config.get("best_mode") for run in runs if run.config.get("best_metric") == metric]
    return next((mode for mode in modes if mode in ("min", "max")), mode_of(metric))


def _row(run: ComparedRun, metric: str, mode: str) -> list[str]:
    best = run.best(metric, mode) if metric else None
    middle = [number(best[0]), f"{best[1]:,}"] if best else ["", ""] if metric else []
    return [run.name, *middle, run.state, f"{run.images_per_sec:,.0f}" if run.images_per_sec else ""]


def _differing(runs: Sequence[ComparedRun], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    rows = [
        ["run", *map(settings.flag, names)],
        *([run.name, *(_value(run.config, name) for name in names)] for run in runs),
    ]
    if len(names) > len(runs):
        rows = [["setting" if each == "run" else each for each in row] for row in zip(*rows, strict=True)]
    return rows[0], rows[1:] if names else []


def _value(config: dict[str, Any], name: str) -> str:
    return settings.value_of(config, name) if config else "unknown"


def _pictures(runs: Sequence[ComparedRun]) -> list[tuple[str, int, Picture]]:
    """Load the latest grid of each run that can be decoded: name of the run, step and picture."""
    found = []
    for run in runs:
        for step, file in run.grids:
            if picture := load(run.folder, f"samples/{file}", _ALL_PICTURES // len(runs)):
                found.append((run.name, step, picture))
                break
    return found


def _charts(runs: Sequence[ComparedRun], points: int) -> tuple[list[Chart], list[str]]:
    """Draw each metric with a line per run: evaluations first, then losses, speed last; name what is left out."""
    names = list(dict.fromkeys(name for run in runs for name in run.series if name != "bad_files"))
    names.sort(key=lambda name: ("/" not in name, not name.startswith("eval/"), not name.endswith("/loss")))
    first = [(run.bands[0].name, run.bands[-1].name, len(run.bands)) if run.bands else None for run in runs]
    bands = runs[0].bands if len(set(first)) == 1 else []
    end = max((run.bands[-1].last for run in runs if run.bands), default=0)
    charts: list[Chart] = []
    for name in names[:_MOST_CHARTS]:
        having = [run for run in runs if name in run.series]
        series, labels = [run.series[name] for run in having], [run.name for run in having]
        colours, marks = [runs.index(run) for run in having], Marks(bands, end=end)
        if chart := draw(name, series, marks, f"c{len(charts)}", labels, colours, points):
            charts.append(chart)
    return charts, names[_MOST_CHARTS:]
