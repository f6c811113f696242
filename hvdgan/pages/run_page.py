"""The page of one run, from the contents of its folder."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from hvdgan.cli.events import Update
from hvdgan.pages import settings, verdict
from hvdgan.pages.curves import Chart, Marks, by_kind, draw
from hvdgan.pages.drawing import number
from hvdgan.pages.pictures import Picture, load
from hvdgan.pages.reading.journal import Times
from hvdgan.pages.reading.metrics import is_number
from hvdgan.pages.reading.run_folder import RunFacts, SavedCheckpoint
from hvdgan.pages.reading.thinning import Series
from hvdgan.pages.reading.untrusted import plain
from hvdgan.pages.template import fill

_MOST_CHARTS = 12
_MOST_EVALUATIONS = 24
"""charts of evaluations"""
_MOST_COLUMNS = 40
_MOST_BANDS = 20
_MOST_LINES = 16
_MOST_GRIDS = 24
_GRID_BYTES = 80_000
ALL_GRIDS = 100_000_000
"""bytes of the PNGs that are decoded, about: a stopped run waits ten seconds for its page"""
_TIMES = {
    "step_seconds": "whole step",
    "wait_seconds": "waiting for data",
    "wait_seconds_max": "the rank that waits longest",
    "between_seconds": "after the step",
}
_NO_LOSSES = frozenset({*_TIMES, "images_per_sec", "wait_rank", "bad_files"})
_MOST_CONFIG = 100_000
_LONGEST_CELL = 60
_MOST_RANKS = 8
_DIFFERENCE = 0.01
"""part of a step by which ranks wait longer than their mean, from which on they are named"""
Rows = list[list[str]]


def make(run: RunFacts) -> str:
    """Make the page of a run.

    Args:
        run: contents of its folder; pictures that cannot be decoded are added to the remarks.
    """
    judged = verdict.judge(run)
    metrics, journal = run.metrics, run.journal
    marks = Marks(metrics.bands, journal.resumptions, journal.skipped_updates.kept, end=metrics.last_step)
    losses, more = _losses(run, marks)
    real = load(run.folder, "samples/real.png", 2 * _GRID_BYTES) if run.grids else None
    frames = _frames(run)
    config = run.config or {}
    return fill(
        "run.html.j2",
        run=run,
        verdict=judged,
        facts=_facts(run),
        frames=frames,
        real=real,
        losses=losses,
        more_metrics=more,
        not_finite=[each for each in run.metrics.series.values() if each.not_finite],
        best=run.best and (run.best[0], run.best[1], number(run.best[2]), run.best[3]),
        evaluations=_evaluations(run, marks),
        more_evaluations=_left_out(run),
        measured=_measured(run),
        bands=[f"{band.name}, steps {band.first:,} to {band.last:,}" for band in metrics.bands[:_MOST_BANDS]],
        speed_rows=_speed_rows(run),
        speed=_speed(run, marks),
        waits=_waits(run),
        data=_data(run),
        recipe=run.setting("recipe", str),
        networks=_networks(run),
        updates=[
            [stage.name, f"{stage.steps:,}", *_update(update)]
            for stage in run.journal.stages
            for update in stage.updates
        ],
        stages=[[name, f"{steps:,}"] for name, steps in run.newest.get("stages", [])],
        machine=_machine(run),
        changed=settings.changed(config),
        options=settings.options(config, journal.start.changed if journal.start else None),
        most_settings=settings.MOST,
        config=Markup(escape(plain(_indented(config), _MOST_CONFIG))),
        checkpoints=_checkpoints(run),
        verified=any(saved.verified is not None for saved in run.checkpoints),
        damaged=[saved for saved in run.checkpoints if saved.verified is False],
        remarks=run.folder.remarks,
    )


def _indented(config: dict[str, Any]) -> str:
    try:
        return json.dumps(config, indent=1)
    except RecursionError:
        return "It has too many levels to be shown."


def _facts(run: RunFacts) -> list[tuple[str, str]]:
    """Return what a reader wants to know first: name and value."""
    journal, newest = run.journal, run.newest
    facts = [
        ("recipe", run.setting("recipe", str)),
        ("data", run.setting("data", str)),
        ("stage", run.metrics.bands[-1].name if run.metrics.bands else newest.get("stage")),
        ("samples seen", _count(newest.get("samples_seen"))),
        ("ranks", str(journal.ranks or newest.get("ranks") or "")),
        ("images/s, mean", _images_per_sec(run)),
        (run.best[0], f"{number(run.best[2])} at step {run.best[3]:,}") if run.best else ("", ""),
        ("log, from", journal.began[:16]),
        ("log, to", journal.until[:16]),
    ]
    return [(name, value) for name, value in facts if isinstance(value, str) and value]


def _frames(run: RunFacts) -> list[tuple[int, Picture]]:
    newest = run.folder.find(f"samples/{run.grids[-1][1]}") if run.grids else None
    most = max(2, min(_MOST_GRIDS, ALL_GRIDS // max(1, newest.stat().st_size))) if newest else _MOST_GRIDS
    chosen = np.unique(np.linspace(0, len(run.grids) - 1, min(len(run.grids), most)).astype(int))
    loaded = [(run.grids[at][0], load(run.folder, f"samples/{run.grids[at][1]}", _GRID_BYTES)) for at in chosen]
    return [(step, picture) for step, picture in loaded if picture is not None]


def _losses(run: RunFacts, marks: Marks) -> tuple[list[Chart], Rows]:
    """Draw the metrics of training; those beyond the number of charts become rows."""
    series = [
        each for name, each in run.metrics.series.items() if name not in _NO_LOSSES and not name.startswith("eval/")
    ]
    charts: list[Chart] = []
    more: list[Series] = []
    for kind, group in by_kind(series).items():
        lines = group[:_MOST_LINES] if len(charts) < _MOST_CHARTS else []
        title = group[0].name if len(group) == 1 else kind
        own = dataclasses.replace(marks, best=_best_of(run, lines))
        if chart := draw(title, lines, own, f"m{len(charts)}") if lines else None:
            charts.append(chart)
            more += group[_MOST_LINES:]
        else:
            more += group
    return charts, [[each.name, number(each.last) if each.count else "", f"{each.count:,}"] for each in more]


def _evaluations(run: RunFacts, marks: Marks) -> list[Chart]:
    """Draw the metrics of evaluations during the run, with the best checkpoint."""
    found: list[Chart] = []
    for series in _evaluated(run)[:_MOST_EVALUATIONS]:
        own = dataclasses.replace(marks, skipped=(), best=_best_of(run, [series]))
        found.extend(filter(None, [draw(series.name, [series], own, f"e{len(found)}")]))
    return found


def _left_out(run: RunFacts) -> Rows:
    """Return a row of each metric of evaluations that has no chart."""
    return [[each.name, number(each.last), f"{each.count:,}"] for each in _evaluated(run)[_MOST_EVALUATIONS:]]


def _evaluated(run: RunFacts) -> list[Series]:
    """Return the metrics of evaluations that have a value, that of the best checkpoint first."""
    best = run.best[0] if run.best else None
    found = [each for name, each in run.metrics.series.items() if name.startswith("eval/") and each.count]
    return sorted(found, key=lambda each: each.name != best)


def _best_of(run: RunFacts, lines: Sequence[Series]) -> tuple[int, float] | None:
    """Return step and value of the best checkpoint, if its metric is among these."""
    if run.best is None or not is_number(run.best[2]) or run.best[0] not in [each.name for each in lines]:
        return None
    return run.best[3], run.best[2]


def _measured(run: RunFacts) -> tuple[list[str], Rows, int] | None:
    """Return heads and rows of the records of evaluation.jsonl, and the number of columns with numbers."""
    if not run.evaluations:
        return None
    names = list(dict.fromkeys(name for each in run.evaluations for name in each if name.startswith("eval/")))
    names = names[:_MOST_COLUMNS]
    facts = ("features", "samples", "weights", "by", "time")
    rows: Rows = []
    for each in run.evaluations:
        cells = [
            *(_figure(each[name]) if name in each else "" for name in names),
            *(_text(each.get(fact)) for fact in facts),
        ]
        rows.append([f"{each['step']:,}", *(plain(cell, _LONGEST_CELL) for cell in cells)])
    return ["step", *names, *facts], rows, 1 + len(names)


def _figure(value: Any) -> str:
    return number(value) if is_number(value) else "no finite value" if value is None else _text(value)


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _images_per_sec(run: RunFacts) -> str:
    return f"{run.images_per_sec:,.0f}" if run.images_per_sec else ""


def _speed_rows(run: RunFacts) -> Rows:
    series = run.metrics.series
    step, wait, longest, after = map(run.metrics.steady, _TIMES)
    rows = [["images per second", _images_per_sec(run)]]
    if step:
        rows.append(["milliseconds of a step", number(1e3 * step)])
        rows.append(["of these, waiting for data", f"{(wait or 0.0) / step:.1%}"])
        if longest:
            rank = f", rank {series['wait_rank'].last:.0f} in the latest record" if "wait_rank" in series else ""
            rows.append(["on the rank that waits longest", f"{longest / step:.1%}{rank}"])
        if after:
            what = "after each step, for logs, samples, evaluations and copies of checkpoints"
            rows.append([what, f"{after / step:.1%} more"])
    waited, written = run.journal.waited, run.journal.written
    if waited.count:
        rows.append(["checkpoints written", f"{waited.count:,}"])
        rows.append(["the steps waited for each", _seconds(waited)])
        rows.append(["a thread wrote each beside the steps", _seconds(written)])
    return [row for row in rows if row[1]]


def _seconds(times: Times) -> str:
    return f"{times.total / times.count:.3f} s, at most {times.longest:.3f} s"


def _waits(run: RunFacts) -> Rows:
    """Name the ranks that wait longer for their data than the others, if they do."""
    step, wait, longest = map(run.metrics.steady, ("step_seconds", "wait_seconds", "wait_seconds_max"))
    if not step or not longest or longest - (wait or 0.0) < _DIFFERENCE * step:
        return []
    return [
        [f"rank {rank}", f"{records:,}", f"{seconds / step:.1%}"]
        for rank, records, seconds in run.metrics.waits.longest(_MOST_RANKS)
    ]


def _speed(run: RunFacts, marks: Marks) -> list[Chart]:
    series = run.metrics.series
    rates = [series[name] for name in ("images_per_sec",) if name in series]
    times = [series[name] for name in _TIMES if name in series]
    rate = draw("images per second", rates, marks, "s0", ["images/s"] * len(rates))
    parts = draw("seconds of a step", times, marks, "s1", [_TIMES[each.name] for each in times])
    return [chart for chart in (rate, parts) if chart]


def _data(run: RunFacts) -> Sequence[str]:
    if run.journal.start and run.journal.start.data:
        return run.journal.start.data
    data = run.newest.get("data") or {}
    return [f"{_text(data.get('source'))}, {_count(data.get('num_images'))} samples"] if data else []


def _networks(run: RunFacts) -> tuple[list[str], Rows] | None:
    if run.journal.start and run.journal.start.networks:
        known = run.journal.start.networks
        counts = [[each.name + ", frozen" * each.is_frozen, f"{each.trainable:,}", f"{each.other:,}"] for each in known]
        return ["network", "trainable parameters", "others"], counts
    counted = run.newest.get("networks") or {}
    rows = [[name, _count(facts["parameters"]), _count(facts["tensors"])] for name, facts in counted.items()]
    return (["network", "parameters", "tensors"], rows) if rows else None


def _machine(run: RunFacts) -> list[str]:
    if run.journal.start and run.journal.start.machine:
        return run.journal.start.machine
    versions = run.newest.get("versions") or {}
    return [", ".join(f"{name} {_text(value)}" for name, value in versions.items())] if versions else []


def _update(update: Update) -> list[str]:
    """Name of an update, owned networks, how often, and the bytes that it all-reduces."""
    often = "every step" if update.every == 1 else f"every {update.every} steps"
    reduced = f"all-reduces {update.bytes:,} bytes" if update.bytes else "no all-reduce with one rank"
    return [update.name, ", ".join(update.owns), often, reduced]


def _checkpoints(run: RunFacts) -> Rows:
    best = run.best[3] if run.best else None
    return [
        [
            saved.name,
            f"{saved.step:,}",
            _text((saved.facts or {}).get("stage")),
            f"{saved.bytes / 1e6:,.1f}" if saved.facts else "",
            saved.problem or _condition(saved) + ", the best" * (saved.step == best),
        ]
        for saved in run.checkpoints
    ]


def _condition(saved: SavedCheckpoint) -> str:
    return {True: "verified", False: f"DAMAGED: {saved.damage}", None: "not verified"}[saved.verified]


def _count(value: Any) -> str:
    if type(value) is int:
        return f"{value:,}" if abs(value) < 1 << 63 else "out of range"
    return _text(value)
