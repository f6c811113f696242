"""Reads the files of a run folder: the one way for all commands, in bounded memory, and never out of the folder."""

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LONGEST_LINE = 1 << 20
"""bytes of a line that is read; a longer one is left out"""
_PORTION = 1 << 18
Facts = dict[str, Any]


class Folder:
    """A folder that is read and never written; `remarks` say what could not be read, and why."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.remarks: list[str] = []

    def find(self, name: str) -> Path | None:
        """Return the path of what lies inside the folder; else None, with a remark unless it is missing."""
        path = self.path / name
        try:
            if path.resolve(strict=True).is_relative_to(self.path.resolve()):
                return path
            self.remarks.append(f"{name} is a link that leads out of the folder; it is not read")
        except FileNotFoundError:
            pass
        except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
            self.remarks.append(f"{name} cannot be read: {error}")
        return None

    def names(self, name: str) -> list[str]:
        """List the entries of a subfolder, sorted; empty if there is none."""
        path = self.find(name)
        return sorted(os.listdir(path)) if path and path.is_dir() else []

    def records(self, name: str) -> Iterator[Facts]:
        """Yield the JSON objects of a file, one from each line; a missing file has none."""
        return itertools.chain.from_iterable(self.portions(name))

    def portions(self, name: str) -> Iterator[list[Facts]]:
        """Yield the same, as many as are read at once; a remark counts the lines that are left out."""
        path, left_out = self.find(name), 0
        try:
            with open(path or os.devnull, "rb") as file:
                while lines := file.readlines(_PORTION):
                    values = _values([line for line in lines if len(line) <= LONGEST_LINE])
                    found = [value for value in values if isinstance(value, dict)]
                    left_out += len(lines) - len(found)
                    yield found
        except OSError as error:
            self.remarks.append(f"{name} cannot be read further: {error}")
        if left_out:
            self.remarks.append(
                f"{name}: lines that are cut off, longer than {LONGEST_LINE:,} bytes, or no JSON objects are left out "
                f"({left_out:,})"
            )

    def json_object(self, name: str) -> Facts:
        """Read a file that holds one JSON object; if it does not, an empty one, with a remark unless it is missing."""
        if path := self.find(name):
            with contextlib.suppress(OSError):
                if isinstance(value := _value(path.read_bytes()), dict):
                    return value
            self.remarks.append(f"{name} is not a JSON object")
        return {}


def _values(lines: list[bytes]) -> list[Any]:
    """Return the values of lines of JSON; all at once takes a fifth of the time."""
    with contextlib.suppress(ImportError, ValueError):  # orjson refuses NaN and large integers
        import orjson  # here, because hvdgan launch runs on the standard library alone

        values: list[Any] = orjson.loads(b"[" + b",".join(lines) + b"]")
        if len(values) == len(lines):
            return values
    return [_value(line) for line in lines]


def _value(text: bytes) -> Any:
    """Return the value of a text of JSON; None if it is none."""
    try:
        return json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
