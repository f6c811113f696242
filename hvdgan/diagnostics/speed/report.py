"""Makes the tables that hvdgan.bench prints."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hvdgan.diagnostics.speed.blocks import PARTS
from hvdgan.diagnostics.table import Table

NAMES = {
    "compute_seconds": "compute",
    "exposed_allreduce_seconds": "all-reduce not hidden",
    "input_wait_seconds": "wait for data",
    "host_seconds": "host",
}


def tables(facts: Mapping[str, Any]) -> list[Table]:
    """Make all tables.

    Args:
        facts: contents of --json.
    """
    return [_efficiencies(facts["efficiency"]), _runs(facts["runs"]), _updates(facts["runs"])]


def _runs(runs: Sequence[Mapping[str, Any]]) -> Table:
    heads = ["launch", "images each", "stage", "images/s", "step", *NAMES.values()]
    # Of a rank on a GPU its memory is what may run out.
    memory = "peak_gpu_bytes" if all(run["peak_gpu_bytes"] for run in runs) else "peak_rss_bytes"
    heads += ["MB reduced", "peak GPU MB" if memory == "peak_gpu_bytes" else "peak MB", "first step s"]
    lines: list[list[str]] = []
    for run in runs:
        for name, stage in run["stages"].items():
            rate = _cells(stage["images_per_sec"], 1)
            parts = [_cells(stage[part], 2, 1e3) for part in ("step_seconds", *PARTS)]
            rest = [_cells(run[memory], 0, 1e-6), _cells(run["startup_seconds"], 1)]
            reduced = (f"{stage['bytes_reduced'] / 1e6:,.3f}", "")
            lines += _two_lines([_label(run), str(run["local_batch_size"]), name], [rate, *parts, reduced, *rest])
    note = "In ms: medians over the launches (and over the copies); below them the smallest and the largest"
    return Table("Steps", note, heads, lines, range(3, len(heads)))


def _updates(runs: Sequence[Mapping[str, Any]]) -> Table:
    heads = ["launch", "images each", "stage", "update", "every", "compute", "all-reduce not hidden", "MB reduced"]
    lines: list[list[str]] = []
    for run in runs:
        for name, stage in run["stages"].items() if run["kind"] == "ranks" else ():
            for update, figures in stage["updates"].items():
                labels = [_label(run), str(run["local_batch_size"]), name, update, str(figures["every"])]
                parts = [_cells(figures[part], 2, 1e3) for part in PARTS[:2]]
                lines += _two_lines(labels, [*parts, (f"{figures['bytes_reduced'] / 1e6:,.3f}", "")])
    note = "In ms; within a step they share work, so they do not add up to it"
    return Table("Updates alone", note, heads, lines, range(4, len(heads)))


def _label(run: Mapping[str, Any]) -> str:
    return f"{run['ranks']} {run['kind'] if run['ranks'] > 1 else 'rank'}"


def _cells(figure: Mapping[str, float], digits: int, factor: float = 1.0) -> tuple[str, str]:
    """Format a median, and the smallest and the largest value unless they are equal."""
    middle, low, high = (f"{figure[name] * factor:,.{digits}f}" for name in ("median", "low", "high"))
    return middle, "" if low == high else f"{low} to {high}"


def _two_lines(labels: Sequence[str], cells: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
    medians, ranges = zip(*cells, strict=True)
    yield [*labels, *medians]
    if any(ranges):
        yield ["low to high", *("" for _ in labels[1:]), *ranges]


def _efficiencies(rows: Sequence[Mapping[str, Any]]) -> Table:
    heads = ["scaling", "ranks", "images each", "stage", "images/s", "of independent copies", "of ranks x one rank"]
    lines = [
        [
            row["scaling"],
            str(row["ranks"]),
            str(row["local_batch_size"]),
            row["stage"],
            _spread(row["images_per_sec"]),
            _spread(row["of_copies"], 3) if row["of_copies"] else "",
            _spread(row["of_one_rank"], 3),
        ]
        for row in rows
    ]
    note = "Images/s of all ranks; weak: the same batch on each rank, strong: the same global batch"
    return Table("Efficiency", note, heads, lines, range(4, len(heads)))


def _spread(figure: Mapping[str, float], digits: int = 1) -> str:
    middle, ends = _cells(figure, digits)
    return f"{middle} ({ends})" if ends else middle
