"""Reads the conditions of samples from the command line, in the units of the data."""

import csv
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.data.conditions import number_in
from hvdgan.recipe import DataSpec


def given(text: str | None, path: Path | None, spec: DataSpec) -> np.ndarray | None:
    """The conditions of samples as networks see them, float32 (N, k); the samples take the rows in turn.

    A line on stderr warns of numbers outside of the range that the run has declared.

    Args:
        text: value of --condition, such as energy=50,theta=1.57, or None.
        path: value of --conditions: a CSV table whose header names all conditions, or an .npy array (N, k); or None.
        spec: facts about the data of the run.

    Returns:
        None if no conditions are given.

    Raises:
        UserError: the run has no conditions, or others, or its map makes NaN or infinities of the numbers.
    """
    if text is None and path is None:
        return None
    flag = f"--condition {text}" if path is None else f"--conditions {path}"
    if not spec.conditions or spec.values is None or spec.values.conditions is None:
        raise UserError(f"{flag}: the run has no conditions; leave the flag out")
    if text is not None and path is not None:
        raise UserError("--condition: one condition for all samples; leave it out beside --conditions")
    rows = [_of_text(text, spec.conditions)] if text is not None else _of_file(path, flag, spec.conditions)
    numbers = np.array(rows, np.float64)
    if not np.isfinite(numbers).all():
        raise UserError(f"{flag}: expected finite numbers")
    value_map = spec.values.conditions
    with np.errstate(all="ignore"):
        seen = value_map.forward(numbers)
    if words := value_map.lost_in_words(numbers, seen, lambda row: "" if path is None else f" of row {row[0] + 1}"):
        raise UserError(f"{flag}: {words}; expected numbers that the map of the run makes finite")
    if words := value_map.outside_in_words(numbers):
        print(f"hvdgan: warning: {flag}: {words}", file=sys.stderr, flush=True)
    return seen


def described(spec: DataSpec) -> str:
    """How to give the conditions of a run, for messages."""
    return f"--condition {','.join(f'{name}=NUMBER' for name in spec.conditions)}, or a table with --conditions FILE"


def _of_text(text: str, names: Sequence[str]) -> list[float]:
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        try:
            value = number_in(number)
        except ValueError:
            value = math.nan
        if name not in names or not equals or not math.isfinite(value) or name in found:
            raise UserError(f"--condition {text}: {part.strip()!r} is not NAME=NUMBER with one of {', '.join(names)}")
        found[name] = value
    if missing := [name for name in names if name not in found]:
        raise UserError(f"--condition {text}: no value for {', '.join(missing)}; expected {', '.join(names)}")
    return [found[name] for name in names]


def _of_file(path: Path | None, flag: str, names: Sequence[str]) -> list[list[float]]:
    assert path is not None
    try:
        if path.suffix.lower() == ".npy":
            numbers = np.load(path, allow_pickle=False)
        else:
            with path.open(newline="", encoding="utf-8-sig") as file:
                rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
            if twice := next((name for name in names if rows[0].count(name) > 1), None):
                raise UserError(f"{flag}: two columns are named {twice}; rename or remove one")
            places = [rows[0].index(name) for name in names]
            numbers = np.array([[number_in(row[place]) for place in places] for row in rows[1:]], np.float64)
    except (OSError, ValueError, IndexError, csv.Error) as error:
        raise UserError(f"{flag}: cannot be read: {error}; expected CSV with the columns {', '.join(names)}") from error
    if numbers.ndim != 2 or numbers.shape[1] != len(names) or not len(numbers) or numbers.dtype.kind not in "fiu":
        raise UserError(f"{flag}: shape {numbers.shape}; expected (N, {len(names)}) numbers for {', '.join(names)}")
    return numbers.tolist()
