"""Summarises runs: medians with their range, the ratios that are the project's goals, a table and a plot."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from programs import PROGRAMS

Runs = dict[str, list[dict[str, Any]]]
"""successful runs by program, each with the number of its repeat"""

PEERS = ("horovod-mpi", "horovod-gloo", "multiworker", "mirrored", "ddp")
# Titles of the figures in the tables, and their decimals.
FIGURES = {"images_per_sec": ("images/s", 1), "start_seconds": ("first step after s", 1), "peak_mib": ("MiB a rank", 0)}
OURS = ("hvdgan-launch", "hvdgan-mpi", "hvdgan-gloo")


@dataclasses.dataclass(frozen=True)
class Goal:
    """A ratio of two programs' figures with its lower or upper bound."""

    number: int
    program: str
    against: tuple[str, ...]
    """programs to compare with, of which the best counts"""
    bound: float
    figure: str = "images_per_sec"
    at_most: bool = False


def goals() -> list[Goal]:
    """List the goals that this benchmark measures; hvdgan.bench and the tests measure the others."""
    found = []
    for bf16 in ("", "-bf16"):
        for ours in OURS:
            copies = 0.95 if ours.endswith("gloo") else 0.98
            found.append(Goal(1, ours + bf16, (f"hvdgan{bf16}-x2",), copies))
            found.append(Goal(1, ours + bf16, tuple(peer + bf16 for peer in PEERS), 1.05 if bf16 else 1.10))
        found.append(Goal(2, f"hvdgan{bf16}", (f"keras{bf16}",), 1.30 if bf16 else 1.20))
        found.append(Goal(2, f"hvdgan{bf16}", (f"torch{bf16}",), 1.00 if bf16 else 1.05))
    found += [Goal(3, f"{ours}-digits", ("hvdgan-digits-x2",), 0.90) for ours in OURS]
    for controller in ("mpi", "gloo"):
        pair = f"hvdgan-{controller}", (f"horovod-{controller}",)
        found.append(Goal(5, *pair, 1.3, "start_seconds", at_most=True))
        found.append(Goal(6, *pair, 1.1, "peak_mib", at_most=True))
    return found


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the smallest and the largest value."""
    return statistics.median(values), min(values), max(values)


def summarise(runs: Runs) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Compute the spread of each program's figures over the repeats."""
    return {name: {figure: spread([run[figure] for run in each]) for figure in FIGURES} for name, each in runs.items()}


def judge(runs: Runs) -> list[dict[str, Any]]:
    """Judge each goal whose programs have run, by the median of its ratios within each repeat.

    If there are several programs to compare with, the one with the best median counts.
    """
    verdicts = []
    for goal in goals():
        there = [name for name in goal.against if runs.get(name)]
        if not runs.get(goal.program) or not there:
            continue
        best = max(there, key=lambda name: statistics.median(run[goal.figure] for run in runs[name]))
        theirs = {run["repeat"]: run[goal.figure] for run in runs[best]}
        ratios = [run[goal.figure] / theirs[run["repeat"]] for run in runs[goal.program] if run["repeat"] in theirs]
        if not ratios:
            continue
        median, least, most = spread(ratios)
        verdicts.append(
            {
                **{"goal": goal.number, "program": goal.program, "against": best, "figure": goal.figure},
                **{"bound": goal.bound, "at_most": goal.at_most, "ratio": median, "least": least, "most": most},
                "reached": median <= goal.bound if goal.at_most else median >= goal.bound,
            }
        )
    return verdicts


def table(runs: Runs) -> str:
    """Format the figures and the goals as Markdown."""
    heads = " | ".join(f"{words} (range)" for words, _ in FIGURES.values())
    lines = [f"| program | ranks | {heads} |", "|---" * 5 + "|"]
    for name, figures in summarise(runs).items():
        cells = (_cell(figures[figure], digits) for figure, (_, digits) in FIGURES.items())
        lines.append(f"| {name} | {PROGRAMS[name].ranks} | {' | '.join(cells)} |")
    verdicts = judge(runs)
    if verdicts:
        lines += ["", "| goal | of | against | what | asked | ratio (range) | |", "|---|---|---|---|---|---|---|"]
    for v in verdicts:
        asked = f"{'at most' if v['at_most'] else 'at least'} {v['bound']:.2f}"
        ratio, ends = _cell((v["ratio"], v["least"], v["most"]), 3), "reached" if v["reached"] else "**missed**"
        what = FIGURES[v["figure"]][0]
        lines.append(f"| {v['goal']} | {v['program']} | {v['against']} | {what} | {asked} | {ratio} | {ends} |")
    return "\n".join(lines)


def _cell(figure: tuple[float, float, float], digits: int) -> str:
    median, low, high = (f"{value:,.{digits}f}" for value in figure)
    return f"{median} ({low} to {high})"


def plot(runs: Runs, path: Path) -> None:
    """Draw the images per second with the range of the repeats; one panel per network size and number of processes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [
        (title, names)
        for title, belongs in _PANELS
        if (names := [name for name in runs if runs[name] and belongs(name)])
    ]
    heights = [0.32 * len(names) + 0.5 for _, names in panels]
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(8, sum(heights) + 0.6), height_ratios=heights, squeeze=False, layout="constrained"
    )
    figures = summarise(runs)
    for (title, names), axis in zip(panels, axes[:, 0], strict=True):
        for place, name in enumerate(names):
            rate, low, high = figures[name]["images_per_sec"]
            colour = "#b5b5b5" if name.endswith("-x2") else "#1f77b4" if name.startswith("hvdgan") else "#d98b4a"
            axis.barh(place, rate, color=colour, xerr=[[rate - low], [high - rate]], error_kw={"capsize": 2})
            axis.text(rate * 0.01, place, f"{rate:.1f}", va="center", fontsize=8)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.invert_yaxis()
        axis.set_xlim(left=0)
        axis.set_title(title, fontsize=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("images per second (grey: two independent copies)", fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _panel(ranks: int, precision: str, digits: bool) -> Callable[[str], bool]:
    def belongs(name: str) -> bool:
        program = PROGRAMS[name]
        return (program.ranks, program.precision, program.digits) == (ranks, precision, digits)

    return belongs


_PANELS = [
    (f"{network}, {precision}, {'two processes' if ranks == 2 else 'one process'}", _panel(ranks, precision, digits))
    for digits, network in ((False, "DCGAN-64"), (True, "DCGAN-32 on digits"))
    for ranks in (2, 1)
    for precision in ("float32", "mixed_bfloat16")
]
