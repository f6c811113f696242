"""Numbers that describe each sample, such as energy and angle: from arrays beside the samples, or from a CSV table."""

import collections
import csv
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from hvdgan.data.bad_files import printable
from hvdgan.data.pixels import SUFFIXES
from hvdgan.data.samples import Samples
from hvdgan.data.store import Container, Store
from hvdgan.errors import UserError
from hvdgan.values import value_map
from hvdgan.values.value_map import ValueMap

_FILE_COLUMNS = ("file", "name")
_SUFFIXES = (*SUFFIXES, ".npy")
Order = Literal["names", "rows"]


def of_container(container: Container, names: Sequence[str], samples: Store) -> tuple[np.ndarray, list[str], list[str]]:
    """Conditions from arrays (N,) or (N, k) beside the samples."""
    count = samples.shape[0] if samples.shape else 0
    columns: list[np.ndarray] = []
    known: list[str] = []
    units: list[str] = []
    for name in names:
        stored = container.find(name, "--conditions")
        stored.refuse_other_types()
        if len(stored.shape) not in (1, 2) or stored.shape[0] != count:
            raise UserError(
                f"--conditions {name}: array of shape {stored.shape}; expected one entry for each of {count:,} samples"
            )
        stored.refuse_others(samples, f"--conditions {name}")
        found = stored.whole()
        numbers = found.astype(np.float64).reshape(count, -1)
        width = numbers.shape[1]
        columns.append(numbers)
        known += [name] if width == 1 else [f"{name}_{place}" for place in range(width)]
        units += stored.units_of(width) or [""] * width
    together = np.concatenate(columns, axis=1)
    _refuse_not_finite("--conditions", together, known)
    return together, known, units


def of_table(
    path: Path, chosen: Sequence[str], order: Order | None, source: Samples
) -> tuple[np.ndarray, list[str], str]:
    """Conditions from the columns of a CSV table, their names, and a remark on the column and rows that count, or "".

    Each row belongs to the sample whose path a column holds. The rows are in the order of the samples if `order` says
    so, or if the samples have no paths, no column is called `file` or `name`, and none numbers the rows otherwise.
    """
    where, first = f"--condition-table {path}", os.fsdecode(source.key(0))
    header, rows = read_table(path, where)
    has_paths = first.lower().endswith(_SUFFIXES)
    others = {*header} - {*chosen} if has_paths and len(header) > 1 else {*_FILE_COLUMNS}
    columns = [place for place, name in enumerate(header) if name in others]
    keyed, ordered = (None, rows) if order == "rows" else _by_path(where, header, rows, source, columns)
    names = list(chosen) or [name for place, name in enumerate(header) if place != keyed]
    if keyed is None and (order == "names" or (order is None and (columns or has_paths))):
        problem = f"no column holds the paths of {source.name}, such as {printable(first[:80])}; add a column `file`"
        said = ", or give --condition-order rows if the rows are in the order of the samples" * (order is None)
        raise UserError(f"{where}: {problem}{said}")
    numbered = [[str(begin + each) for each in range(len(rows))] for begin in (0, 1)]
    for name, *texts in zip(header, *rows, strict=True) if keyed is None and order is None else ():
        if name not in chosen and texts not in numbered and sorted(texts) in map(sorted, numbered):
            said = f"column {name or 'without a name'} numbers the samples in another order than the rows"
            raise UserError(f"{where}: {said}; sort the rows by it, or give --condition-order rows to ignore it")
    if not names:
        raise UserError(f"{where}: no column of numbers beside {header[0]}; expected one for each condition")
    if keyed is None and (len(rows) != len(source) or source.bad_files):
        raise UserError(
            f"{where}: {len(rows):,} rows, and the data have {len(source):,} samples; expected one row for each, "
            "or a column `file` with their paths"
        )
    numbers = columns_of(where, header, ordered, names)
    unused = len(rows) - len(ordered)
    joined = "" if keyed is None or header[keyed] in _FILE_COLUMNS else f"{where}: column {header[keyed]} names samples"
    of = f"{where}: {unused:,} of {len(rows):,} rows name none of the samples, and are ignored"
    return numbers, names, "; ".join(filter(None, (joined, of if unused else "")))


def _by_path(
    where: str, header: Sequence[str], rows: list[list[str]], source: Samples, columns: Sequence[int]
) -> tuple[int | None, list[list[str]]]:
    """The column that holds the paths of at least half of the samples, if there is one, and the row of each sample."""
    files = [_forms(os.fsdecode(source.key(index))) for index in range(len(source))] if columns else []
    numbers = [place for place in columns if all(row[place].lstrip("-").isdecimal() for row in rows)]
    texts = [place for place in columns if place not in numbers]
    for some, form in itertools.product(filter(None, (texts, numbers)), range(4)):  # ages may look like 1.png, 2.png
        wanted = [each[form] for each in files]
        found = {place: [_forms(row[place])[form] for row in rows] for place in some}
        matches = {place: len({*wanted} & {*found[place]}) for place in some}
        most = [place for place in some if matches[place] == max(matches.values())]
        if len({*wanted}) < len(wanted) or 2 * matches[most[0]] < len(wanted):
            continue
        keyed = next((place for place in most if header[place] in _FILE_COLUMNS), most[0])
        if header[keyed] not in _FILE_COLUMNS and any(found[place] != found[keyed] for place in most):
            names = ", ".join(header[place] for place in most)
            raise UserError(f"{where}: the columns {names} hold the samples' paths; call the right one `file`")
        counts = collections.Counter(found[keyed])
        for file in wanted:
            if counts[file] != 1:
                number = f"{counts[file] or 'no'} rows for {printable(file)} in column {header[keyed]}"
                raise UserError(f"{where}: {number}; expected one for each sample")
        by_file = dict(zip(found[keyed], rows, strict=True))
        return keyed, [by_file[file] for file in wanted]
    return None, rows


def _forms(path: str) -> tuple[str, str, str, str]:
    """A path as it is, without the suffix, without folders, and without both."""
    path = os.path.normpath(path.replace("\\", "/"))
    stem = os.path.splitext(path)[0] if path.lower().endswith(_SUFFIXES) else path
    return path, stem, os.path.basename(path), os.path.basename(stem)


def columns_of(where: str, header: Sequence[str], rows: Sequence[Sequence[str]], names: Sequence[str]) -> np.ndarray:
    """The numbers in some columns of a table, (N, k) float64; `where` begins the messages."""
    if missing := [name for name in names if name not in header]:
        raise UserError(f"{where}: no column {missing[0]}; it has {', '.join(header)}")
    _refuse_unclear(where, header, names)
    places = [header.index(name) for name in names]
    try:
        numbers = np.array([[float(row[place]) for place in places] for row in rows], np.float64)
    except ValueError as error:
        text = str(error).rpartition(": ")[2]
        column = next(header[at] for at in places if text in (repr(row[at]) for row in rows))
        raise UserError(f"{where}: {column} of a row is {text}; expected numbers; see --conditions") from error
    _refuse_not_finite(where, numbers, names)
    return numbers


def map_of(given: str | None, names: Sequence[str], units: Sequence[str] = ()) -> ValueMap:
    """The map of conditions: the declared one, or standard."""
    if twice := next((name for place, name in enumerate(names) if name in names[:place]), None):
        raise UserError(f"--conditions: two conditions are named {twice}; name each once, or rename its array")
    return value_map.parse(given or "standard", "--condition-values", names, units)


def read_table(path: Path, where: str) -> tuple[list[str], list[list[str]]]:
    """The column names and the rows of a CSV table; `where` begins the messages."""
    try:
        if not path.is_file():  # but a device, which would be read for ever
            raise OSError("no such file")
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{where}: cannot be read as CSV: {error}") from error
    if len(rows) < 2:
        raise UserError(f"{where}: expected a line of column names and a row for each sample")
    header, *others = rows
    if len(header) == 1 and (wrong := {";", "\t"} & {*header[0]}):
        raise UserError(f"{where}: the columns are separated by {wrong.pop()!r}; expected commas")
    for number, row in enumerate(others, 2):
        if len(row) != len(header):
            raise UserError(f"{where}: row {number} has {len(row)} columns, and the header has {len(header)}")
    return header, others


def _refuse_unclear(where: str, header: Sequence[str], used: Sequence[str]) -> None:
    """Refuse columns without a name, as pandas writes its index, and names that two columns have."""
    if "" in used:
        raise UserError(
            f"{where}: column {header.index('') + 1} has no name; write the table without an index, or choose the "
            "columns with --conditions"
        )
    if twice := next((name for name in used if header.count(name) > 1), None):
        raise UserError(f"{where}: two columns are named {twice}; rename or remove one")


def _refuse_not_finite(flag: str, numbers: np.ndarray, names: Sequence[str]) -> None:
    if not np.isfinite(numbers).all():
        row, column = (int(place[0]) for place in np.nonzero(~np.isfinite(numbers)))
        raise UserError(
            f"{flag}: {names[column]} of sample {row} is {numbers[row, column]}; expected a finite number for each"
        )
