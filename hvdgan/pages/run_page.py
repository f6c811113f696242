"""The page of one run, from the contents of its folder."""

import json
import os
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from hvdgan.pages.curves import Chart, Charts, Line, by_kind, number
from hvdgan.pages.run_facts import RunFacts
from hvdgan.pages.run_status import RunStatus, duration, status_of
from hvdgan.pages.template import EmbeddedImage, fill, load, load_sound
from hvdgan.runs import events
from hvdgan.runs.events import Caution, InputSpeed, Recovery, SkippedUpdate, Start, UpdateFacts
from hvdgan.runs.metrics import FILE, OF_SPEED, PARTS, Series

_MOST_GRIDS = 20
ALL_GRIDS = 100_000_000
"""bytes of the PNGs that are decoded, about: a run that has finished waits for its page"""
_ALL_PICTURES = 900_000
_TIMES = {
    "step_seconds": "whole step",
    "wait_seconds": "waiting for data",
    "wait_seconds_max": "the rank that waits longest for data",
    "compute_seconds_median": "computing, the median of the ranks",
    "compute_seconds_max": "the rank that computes longest",
    "reduce_seconds": PARTS["reduce_seconds"],
    "between_seconds": "after the step",
}
_SEEN = 0.01
"""part of a step from which on a time is worth a line"""
_FILES = (events.LOG, "config.json", FILE, events.FILE, "checkpoints", "samples")
Rows = list[list[str]]


def make(run: RunFacts, place: Path | None = None) -> str:
    """Make the page of a run; pictures that cannot be decoded are added to the remarks of its folder.

    `place` is the folder of the page, from which its links lead to the files of the run; default: the run folder.
    """
    way, status = os.path.relpath(run.folder.path.resolve(), (place or run.folder.path).resolve()), status_of(run)
    metrics, journal, start = run.metrics, run.journal, run.journal.start
    charts = Charts(
        len(metrics.series),
        bands=metrics.bands,
        marks={"dashed": journal.resumptions, "dotted": [each.step for each in journal.of(SkippedUpdate)]},
        end=metrics.last_step,
        images=run.setting("global_batch_size", int) or 0,
        clock=metrics.clock.curve(400),
    )
    evaluated = [each for name, each in metrics.series.items() if name.startswith("eval/")]
    evaluated.sort(key=lambda each: run.best is None or each.name != run.best[0])
    losses = [
        each for name, each in metrics.series.items() if name not in {"bad_files", *OF_SPEED} and each not in evaluated
    ]
    frames = _frames(run)
    return fill(
        "run.html.j2",
        charts,
        run=run,
        heading=run.folder.path.resolve().name,
        start=start,
        status=status,
        commands=_commands(run, status),
        files=[(name, quote(f"{way}/{name}")) for name in _FILES if (run.folder.path / name).exists()],
        starts=_starts(run),
        facts=_facts(run),
        said=[*journal.lost, *(each.text for each in journal.of(Caution))],
        frames=frames,
        real=load(run.folder, "samples/real.png", 2 * _ALL_PICTURES // _MOST_GRIDS) if frames else None,
        sounds=[
            (name, sound)
            for name in ("newest", "real")
            if frames and (sound := load_sound(run.folder, f"samples/{name}.wav", _ALL_PICTURES))
        ],
        losses=_drawn(run, charts, by_kind(losses)),
        evaluations=_drawn(run, charts, {each.name: [each] for each in evaluated}),
        not_finite=[f"{each.name} ({each.not_finite:,})" for each in metrics.series.values() if each.not_finite],
        best=run.best and f"{run.best[0]}: {number(run.best[2])} at step {run.best[1]:,}",
        speed=_speed(run, charts),
        speed_rows=_speed_rows(run),
        input=getattr(journal.last(InputSpeed), "text", ""),
        networks=[
            [each.name + ", frozen" * each.is_frozen, f"{each.trainable:,}", f"{each.other:,}"]
            for each in (start.networks if start else ())
        ],
        updates=[
            [stage.name + ", simultaneous" * stage.together, f"{stage.steps:,}", *_update(update)]
            for stage in (start.stages if start else ())
            for update in stage.updates
        ],
        config=json.dumps(run.config, indent=1),
        checkpoints=[[f"{step:,}", f"{size / 1e6:,.1f}" if size else "not whole"] for step, size in run.checkpoints],
    )


def _command(start: Start) -> str:
    """Return the command of a start, with its launcher if that needs only the number of ranks."""
    launched = start.launcher in ("horovodrun", "mpirun") and start.hosts == 1 and not start.is_elastic
    command = start.command.removeprefix("hvdgan ")
    starter = start.launcher if command == start.command else "hvdgan launch"
    return f"{starter} -np {start.ranks} {command}" if launched else start.command


def _commands(run: RunFacts, status: RunStatus) -> Rows:
    """Return what a user may do next, each in words and as a command."""
    start, given, path = run.journal.start, run.setting("run_dir", str) or "", str(run.folder.path)
    folder = shlex.quote(given if os.path.abspath(given) == os.path.abspath(path) else path)
    networks = [each.name for each in start.networks if not each.is_frozen] if start else []
    network = "generator" if "generator" in networks else shlex.quote(networks[0]) if networks else ""
    rows = [[status.resume or "It was started by", _command(start)]] if start else []
    if status.state == "running":
        rows.append(["Save and stop it", f"touch {folder}/stop"])
    if run.newest is not None:
        conditions = (f" --condition {shlex.quote(f'{name}=NUMBER')}" for name in run.setting("conditions", list) or ())
        rows.append(["Draw samples", f"hvdgan sample {folder} --out samples.png{''.join(conditions)}"])
        rows.append(["Measure its quality", f"hvdgan evaluate {folder}"])
        export = f"hvdgan export {folder} --only {network} --out {network}.keras"
        rows += [["Export it for Keras", export]] * bool(network)
    return [*rows, ["Renew this page", f"hvdgan report {folder}"]]


def _starts(run: RunFacts) -> Rows:
    """Return the starts: time, step, ranks, and what is not as in the start before."""
    rows, before = Rows(), None
    for at, start in run.journal.started:
        changes = ["resumed from memory"]
        if isinstance(start, Start):
            changes, before = _changes(before, start) if before else [], start
        rows.append([at[:16], f"{start.step:,}", f"{start.ranks:,}", "; ".join(changes)])
    return rows


def _changes(before: Start, after: Start) -> list[str]:
    """Return the settings of a start that are not as before, and lines about versions, ranks and devices."""
    words = [[word.partition("=") for word in start.changed] for start in (before, after)]
    old, new = ({name: value or "on" for name, _, value in each} for each in words)
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    flags = [f"{name} {new.get(name, 'default')}, was {old.get(name, 'default')}" for name in differing]
    return [*flags, *(line for line in after.machine if line not in before.machine)]


def _facts(run: RunFacts) -> list[tuple[str, str]]:
    """Return what a reader wants to know first: name and value."""
    metrics, start, batch = run.metrics, run.journal.start, run.setting("global_batch_size", int)
    latest = run.journal.last(Start, Recovery)
    hosts = f", {start.hosts} hosts" if start and start.hosts > 1 else ""
    facts = [
        ("recipe", run.setting("recipe", str)),
        ("data", run.setting("data", str)),
        ("stage", metrics.bands[-1].name if metrics.bands else ""),
        ("duration", duration(metrics.clock.last) if metrics.clock.count else ""),
        ("images/s, mean", f"{run.images_per_sec:,.0f}" if run.images_per_sec else ""),
        ("images seen", f"{batch * run.done:,}" if batch else ""),
        ("ranks", f"{latest.ranks:,}" if isinstance(latest, Start | Recovery) else ""),
        ("launcher", f"{start.launcher}{hosts}" if start and start.ranks > 1 else ""),
        (f"best {run.best[0]}", f"{number(run.best[2])} at step {run.best[1]:,}") if run.best else ("", ""),
        ("started", run.journal.began[:16]),
        ("last event", run.journal.until[:16]),
    ]
    return [(name, value) for name, value in facts if value]


def _frames(run: RunFacts) -> list[tuple[int, EmbeddedImage]]:
    newest = run.folder.find(f"samples/{run.grids[-1][1]}") if run.grids else None
    most = max(2, min(_MOST_GRIDS, ALL_GRIDS // max(1, newest.stat().st_size))) if newest else _MOST_GRIDS
    chosen = np.unique(np.linspace(0, len(run.grids) - 1, min(len(run.grids), most)).astype(int))
    bytes_each = _ALL_PICTURES // max(1, len(chosen))
    loaded = [(run.grids[at][0], load(run.folder, f"samples/{run.grids[at][1]}", bytes_each)) for at in chosen]
    return [(step, picture) for step, picture in loaded if picture is not None]


def _drawn(run: RunFacts, charts: Charts, groups: dict[str, list[Series]]) -> list[Chart]:
    """Draw a chart of each group of metrics."""
    found = []
    for kind, group in groups.items():
        best = run.best[1:] if run.best and run.best[0] in [each.name for each in group] else None
        lines = [Line(each.name, each, index) for index, each in enumerate(group)]
        found.append(charts.draw(group[0].name if len(group) == 1 else kind, lines, best))
    return [chart for chart in found if chart]


def _speed(run: RunFacts, charts: Charts) -> list[Chart]:
    series = run.metrics.series
    rates = [Line("images/s", series["images_per_sec"], 0)] if "images_per_sec" in series else []
    times = [Line(label, series[name], at) for at, (name, label) in enumerate(_TIMES.items()) if name in series]
    drawn = [charts.draw("images per second", rates), charts.draw("seconds of a step", times)]
    return [chart for chart in drawn if chart]


def _speed_rows(run: RunFacts) -> Rows:
    """Return the mean times of a step that are worth a line, and those of checkpoints."""
    metrics, waited = run.metrics, run.journal.waited
    step, wait, after = (metrics.steady(f"{name}_seconds") or 0.0 for name in ("step", "wait", "between"))
    rows = [["a step", f"{number(1e3 * step)} ms"]] if step else []
    if step and wait > _SEEN * step:
        rows.append(["of it, waiting for data", f"{wait / step:.1%}"])
    for part, (least, middle, most) in metrics.over_ranks.items():
        values = f"{number(1e3 * least)}, {number(1e3 * middle)}, {number(1e3 * most)} ms"
        rows.append([f"{PARTS[part]}: least, median, most of the ranks", values])
    if metrics.slowest:
        rank, records = metrics.slowest.most_common(1)[0]
        rows.append(["the slowest rank", f"rank {rank} in {records / metrics.slowest.total():.0%} of records"])
    if after > _SEEN * step and step:
        rows.append(["after a step, for samples, evaluations and checkpoints", f"{after / step:.1%} more"])
    if waited:
        each = f"{sum(waited) / len(waited):.3f} s, at most {max(waited):.3f} s"
        rows.append([f"steps waited for each of {len(waited):,} checkpoints", each])
    return rows


def _update(update: UpdateFacts) -> list[Any]:
    """Name of an update, owned networks, how often, and the bytes that it all-reduces."""
    often = "every step" if update.every == 1 else f"every {update.every} steps"
    return [update.name, ", ".join(update.owns), often, f"{update.bytes:,}" if update.bytes else ""]
