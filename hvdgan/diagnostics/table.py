"""Rows of facts with a verdict each, and the table they make."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

Verdict = Literal["ok", "warn", "fail"]
_ORDER: tuple[Verdict, ...] = ("ok", "warn", "fail")


@dataclasses.dataclass(frozen=True)
class Row:
    """One thing that was looked at.

    Args:
        check: what.
        found: as it is.
        verdict: ok; warn (it works, less well than it could); fail (a training would fail).
        hint: what to do about it.
    """

    check: str
    found: str
    verdict: Verdict = "ok"
    hint: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return dataclasses.asdict(self)


def worst(rows: Sequence[Row]) -> Verdict:
    """The verdict on all."""
    return max((row.verdict for row in rows), key=_ORDER.index, default="ok")


def table(heads: Sequence[str], lines: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Aligned columns.

    Args:
        heads: of the columns.
        lines: as many cells each.
        right: columns that are aligned to the right.
    """
    widths = [max(len(line[place]) for line in [heads, *lines]) for place in range(len(heads))]

    def aligned(line: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([aligned(heads), *map(aligned, lines)])


def table_of(rows: Sequence[Row]) -> str:
    """The rows as one table."""
    return table(("check", "verdict", "found", "hint"), [(row.check, row.verdict, row.found, row.hint) for row in rows])
