"""The page of several runs: settings that differ, curves over each other, latest samples side by side."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdgan.errors import UserError
from hvdgan.pages import run_facts
from hvdgan.pages.curves import Charts, Line, number
from hvdgan.pages.run_facts import RunFacts
from hvdgan.pages.run_status import status_of
from hvdgan.pages.template import EmbeddedImage, fill, load
from hvdgan.runs.metrics import OF_SPEED, mode_of
from hvdgan.settings.evaluation import PLAIN_MEASURE

_MOST_CHARTS = 16
_NO_CHARTS = {"bad_files", *OF_SPEED} - {"images_per_sec"}
_ALL_PICTURES = 900_000
_MOST_RUNS_DRAWN = 32
Runs = dict[str, RunFacts]


def make(paths: Sequence[Path], sort_by: str | None, mode: str | None) -> str:
    """Make the page of several runs, sorted by a metric that may be given, as may be min or max for its best value."""
    runs = {name: run_facts.read(path) for path, name in zip(paths, _names(paths), strict=True)}
    metric = _metric(runs, sort_by)
    modes = [run.config.get("best_mode") for run in runs.values() if run.config.get("best_metric") == metric]
    mode = mode or next((each for each in modes if each in ("min", "max")), mode_of(metric))
    best = {name: run.metrics.series[metric].best(mode) for name, run in runs.items() if _has(run, metric)}
    sign = -1.0 if mode == "max" else 1.0
    runs = dict(sorted(runs.items(), key=lambda each: sign * best[each[0]][1] if each[0] in best else float("inf")))
    drawn = dict(list(runs.items())[:_MOST_RUNS_DRAWN])
    metrics = _metrics(drawn)
    stages = [[(band.name, band.last) for band in run.metrics.bands] for run in drawn.values()]
    charts = Charts(
        len(drawn) * min(_MOST_CHARTS, len(metrics)),
        bands=next(iter(drawn.values())).metrics.bands if all(each == stages[0] for each in stages) else [],
        end=max(run.metrics.last_step for run in drawn.values()),
    )
    series = [(name, run.metrics.series, at) for at, (name, run) in enumerate(drawn.items())]
    shown = [
        charts.draw(each, [Line(name, found[each], at) for name, found, at in series if each in found])
        for each in metrics[:_MOST_CHARTS]
    ]
    settings = _differing([run.config for run in runs.values() if run.config])
    return fill(
        "comparison.html.j2",
        charts,
        metric=metric,
        mode=mode,
        settings=[f"--{name.replace('_', '-')}" for name in settings],
        rows=[
            [
                name,
                *([number(best[name][1]), f"{best[name][0]:,}"] if name in best else ["", ""] if metric else []),
                f"{run.images_per_sec:,.0f}" if run.images_per_sec else "",
                status_of(run).sentence,
                *(_shown(run.config[each]) if run.config else "unknown" for each in settings),
            ]
            for name, run in runs.items()
        ],
        drawn=len(drawn),
        curves=[chart for chart in shown if chart],
        left_out=metrics[_MOST_CHARTS:],
        pictures=_pictures(drawn),
        remarks=[
            f"{name}: {remark}"
            for name, run in runs.items()
            for remark in [*run.folder.remarks, *([] if run.config else ["its settings cannot be read"])]
        ],
    )


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each path, with as many parts before it as make all names differ."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts))):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _has(run: RunFacts, metric: str) -> bool:
    return metric in run.metrics.series and run.metrics.series[metric].count > 0


def _metric(runs: Runs, sort_by: str | None) -> str:
    """Return the metric by which runs are sorted; empty if no run has its --best-metric, and they share none."""
    names = [[name for name in run.metrics.series if _has(run, name)] for run in runs.values()]
    shared = [name for name in names[0] if all(name in each for each in names)]
    if sort_by is not None:
        if not any(sort_by in each for each in names):
            raise UserError(
                f"--sort-by {sort_by}: no run has this metric; they share {', '.join(shared[:20]) or 'none'}"
            )
        return sort_by
    chosen = [run.setting("best_metric", str) for run in runs.values()]
    wanted = [
        *(name for name in chosen if any(name in each for each in names)),  # one may have died before it had any
        *(name for name in ("eval/fid", PLAIN_MEASURE) if name in shared),
        *(name for name in shared if name.startswith("eval/")),
        *(name for name in shared if name.endswith("/loss")),
    ]
    return next(iter(wanted), "")


def _metrics(runs: Runs) -> list[str]:
    """Return the metrics of the charts: evaluations first, then losses, speed last."""
    names = dict.fromkeys(name for run in runs.values() for name in run.metrics.series)
    wanted = [name for name in names if name not in _NO_CHARTS]
    wanted.sort(key=lambda name: name.endswith(("/learning_rate", "/gradient_norm")))
    return sorted(wanted, key=lambda name: ("/" not in name, not name.startswith("eval/"), not name.endswith("/loss")))


def _differing(configs: Sequence[dict[str, Any]]) -> list[str]:
    """List the settings that are not the same in all runs, except --run-dir and options that a recipe lacks."""
    shared = [name for name in configs[0] if all(name in each for each in configs)] if configs else []
    return [name for name in shared if name != "run_dir" and len({_shown(each[name]) for each in configs}) > 1]


def _shown(value: Any) -> str:
    if isinstance(value, list) and value:
        return ", ".join(map(_shown, value))
    return "not set" if value in (None, [], {}) else value if isinstance(value, str) else json.dumps(value)


def _pictures(runs: Runs) -> list[tuple[str, int, EmbeddedImage]]:
    """Load the latest grid of each run: name of the run, step and picture; one that cannot be decoded is left out."""
    latest = [(name, run.folder, *run.grids[-1]) for name, run in runs.items() if run.grids]
    loaded = [
        (name, step, load(folder, f"samples/{file}", _ALL_PICTURES // len(runs))) for name, folder, step, file in latest
    ]
    return [(name, step, picture) for name, step, picture in loaded if picture is not None]
