"""Draws the figure of hvdgan.bench --plot: the parts of each run's steps, and the scaling efficiencies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdgan.diagnostics.speed.report import NAMES


def draw(path: Path, facts: Mapping[str, Any]) -> None:
    """Draw the figure.

    Args:
        path: path of the .png file.
        facts: contents of --json.
    """
    # Not pyplot, which would need a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    bars = _bars(facts["runs"])
    bottom = [0.0] * len(bars)
    for part, name in NAMES.items():
        values = [max(stage[part]["median"], 0.0) * 1e3 for _, stage in bars]
        left.bar(range(len(bars)), values, bottom=bottom, label=name)
        bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    left.set_xticks(range(len(bars)), [label for label, _ in bars], rotation=30, ha="right", fontsize=8)
    left.set_ylabel("ms of a step")
    left.legend()
    for label, rows in _lines(facts["efficiency"]).items():
        right.plot([row["ranks"] for row in rows], [row["of_one_rank"]["median"] for row in rows], "o-", label=label)
        copies = [row for row in rows if row["of_copies"]]
        medians = [row["of_copies"]["median"] for row in copies]
        right.plot([row["ranks"] for row in copies], medians, "s--", label=f"{label}, of copies")
    right.set(xlabel="ranks", ylabel="efficiency", ylim=(0, None))
    right.legend()
    figure.suptitle(facts["title"])
    figure.savefig(path, dpi=110)


def _bars(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return a label and the times of each launch and stage."""
    return [
        (f"{run['ranks']} {'rank' if run['ranks'] == 1 else run['kind']} x {run['local_batch_size']}, {name}", stage)
        for run in runs
        for name, stage in run["stages"].items()
    ]


def _lines(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault(f"{row['scaling']}, {row['stage']}", []).append(row)
    return lines
