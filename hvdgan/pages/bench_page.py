"""The page of hvdgan.bench: how a run scales over ranks, and where the time of a step goes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hvdgan.pages.drawing import INK, RULE, colour, number, picture
from hvdgan.pages.template import fill

_MOST_BARS = 24
Facts = Mapping[str, Any]


class Drawn(NamedTuple):
    """A picture with its legend.

    Args:
        title: heading.
        svg: picture, safe to put in a page.
        keys: label and index of the colour of each part.
    """

    title: str
    svg: str
    keys: list[tuple[str, int]]


def make(facts: Facts, tables: Sequence[tuple[str, str, Any, Any, Any]], parts: Mapping[str, str]) -> str:
    """Make the page of a measurement.

    Args:
        facts: contents of --json.
        tables: title, note, heads, rows, and indices of the columns of numbers of each table.
        parts: names of the parts of a step, by their names in the facts.
    """
    machine = facts["machine"]
    return fill(
        "bench.html.j2",
        heading=facts["title"],
        sentence=_sentence(facts["efficiency"]),
        facts=[
            ("measured", facts["when"][:16].replace("T", " ")),
            ("host", machine["host"]),
            ("processor", f"{machine['cpu']}, {machine['cores']} cores"),
            ("GPUs", ", ".join(machine["gpus"]) or "none"),
            *((name, version) for name, version in facts["versions"].items()),
        ],
        pictures=pictures(facts, parts),
        tables=tables,
    )


def pictures(facts: Facts, parts: Mapping[str, str], prefix: str = "") -> list[Drawn]:
    """Draw the efficiencies, and the parts of the steps."""
    return [*_efficiencies(facts["efficiency"], prefix), *_steps(facts["runs"], parts, prefix)]


def bars_of(runs: Sequence[Facts]) -> list[tuple[str, Facts]]:
    """Return a label and the times of each launch and stage."""
    return [
        (f"{run['ranks']} {'rank' if run['ranks'] == 1 else run['kind']} x {run['local_batch_size']}, {name}", stage)
        for run in runs
        for name, stage in run["stages"].items()
    ]


def _sentence(rows: Sequence[Facts]) -> str:
    """Say what the most ranks reach."""
    compared = [row for row in rows if row["of_copies"]]
    if not compared:
        return "One rank was measured"
    most = max(row["ranks"] for row in compared)
    found = [
        f"{row['of_copies']['median']:.2f} ({row['stage']}, {row['scaling']} scaling)"
        for row in compared
        if row["ranks"] == most
    ]
    return f"{most} ranks reach, of {most} independent copies: {'; '.join(found)}"


def _efficiencies(rows: Sequence[Facts], prefix: str) -> list[Drawn]:
    """Draw the efficiency over the number of ranks: full lines of copies, dashed ones of one rank."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        name = f"{row['scaling']}, {row['stage']}"
        if row["of_copies"]:
            lines.setdefault(f"{name}: of independent copies", []).append((row["ranks"], row["of_copies"]["median"]))
        lines.setdefault(f"{name}: of ranks x one rank", []).append((row["ranks"], row["of_one_rank"]["median"]))
    lines = {name: points for name, points in lines.items() if len(points) > 1 or points[0][0] > 1}
    if not lines:
        return []

    def paint(axes: Any) -> None:
        for index, (name, points) in enumerate(lines.items()):
            style = "o-" if name.endswith("copies") else "o--"
            axes.plot(*zip(*points, strict=True), style, color=colour(index), linewidth=1.3, markersize=4)
        axes.grid(axis="y", color=RULE, linewidth=0.6)
        axes.set_ylim(0, None)
        axes.set_xticks(sorted({count for points in lines.values() for count, _ in points}))
        axes.set_xlabel("ranks", color=INK, fontsize=8, loc="right", labelpad=1)

    ends = [f"{name} {number(points[-1][1])} with {points[-1][0]} ranks" for name, points in lines.items()]
    svg = picture(paint, f"Line chart of the efficiency over the ranks: {'; '.join(ends)}.", f"{prefix}e")
    return [Drawn("Efficiency", svg, [(name, index) for index, name in enumerate(lines)])]


def _steps(runs: Sequence[Facts], parts: Mapping[str, str], prefix: str) -> list[Drawn]:
    """Draw a bar for each launch and stage, of the parts of its step."""
    bars = bars_of(runs)[:_MOST_BARS]

    def paint(axes: Any) -> None:
        left = [0.0] * len(bars)
        for index, part in enumerate(parts):
            widths = [max(stage[part]["median"], 0.0) * 1e3 for _, stage in bars]
            axes.barh(range(len(bars)), widths, left=left, height=0.6, color=colour(index))
            left = [before + width for before, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(bars)), [label for label, _ in bars])
        axes.invert_yaxis()
        axes.grid(axis="x", color=RULE, linewidth=0.6)
        axes.set_xlabel("ms of a step", color=INK, fontsize=8, loc="right", labelpad=1)

    said = []
    for label, stage in bars[:8]:
        figures = [f"{name} {number(1e3 * stage[part]['median'])}" for part, name in parts.items()]
        said.append(f"{label} {', '.join(figures)}")
    svg = picture(
        paint, f"Bar chart of the ms of a step: {'; '.join(said)}.", f"{prefix}s", (5.2, 1.0 + 0.32 * len(bars))
    )
    return [Drawn("Where the time of a step goes", svg, [(name, index) for index, name in enumerate(parts.values())])]
