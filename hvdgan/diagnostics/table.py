"""Rows with a verdict each, and aligned tables."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

Verdict = Literal["ok", "warn", "fail"]
_ORDER: tuple[Verdict, ...] = ("ok", "warn", "fail")


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one check."""

    check: str  # its name
    found: str
    verdict: Verdict = "ok"  # warn: a run works, but less well than it could; fail: it would fail
    hint: str = ""  # remedy


def worst(rows: Sequence[Row]) -> Verdict:
    """Return the worst verdict; ok if there are no rows."""
    return max((row.verdict for row in rows), key=_ORDER.index, default="ok")


class Table(NamedTuple):
    """A table with a title; str() aligns its columns, those with indices in `right` to the right."""

    title: str
    note: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    right: Sequence[int]

    def __str__(self) -> str:
        return f"{self.title}. {self.note}\n{table(self.heads, self.lines, right=self.right)}"


def table(heads: Sequence[str], lines: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Format aligned columns."""
    widths = [max(len(line[place]) for line in [heads, *lines]) for place in range(len(heads))]

    def aligned(line: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([aligned(heads), *map(aligned, lines)])


def table_of(rows: Sequence[Row]) -> str:
    """Format rows as a table."""
    return table(("check", "verdict", "found", "hint"), [(row.check, row.verdict, row.found, row.hint) for row in rows])
