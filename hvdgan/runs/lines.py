"""Reads files of a folder that nobody trusts: bounded, never out of the folder, and never a device or a pipe."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

LONGEST_LINE = 1 << 20
"""bytes of a line that is read; a longer one is left out"""
LONGEST_TEXT = 1000
"""characters of a text that a page shows"""
_PORTION = 1 << 18
_LARGEST_OBJECT = 1 << 22
Facts = dict[str, Any]


def plain(text: str, most: int = LONGEST_TEXT) -> str:
    """Return a text that can be shown: control characters and other invisible ones as escapes, and not too long."""
    cut = text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
    shown = (each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in cut)
    return "".join(shown)


def parsed(line: bytes) -> Any:
    """Return the value of a line of JSON; None if it is none, or has too many levels or digits."""
    try:
        return json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _values(lines: list[bytes]) -> list[Any]:
    """Return the values of lines of JSON, as parsed() does; all at once takes a fifth of the time."""
    try:
        values: list[Any] = orjson.loads(b"[" + b",".join(lines) + b"]")
        if len(values) == len(lines):
            return values
    except ValueError:  # orjson knows neither NaN nor large integers
        pass
    return [parsed(line) for line in lines]


class Folder:
    """A folder that is read and never written; `remarks` say what could not be read, and why."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.remarks: list[str] = []

    def _is_inside(self, name: str) -> bool:
        """Check that a path exists and leads to no other folder; a remark says so unless it is missing."""
        path = self.path / name
        try:
            if path.resolve(strict=True).is_relative_to(self.path.resolve()):
                return True
            self.remarks.append(f"{name} is a link that leads out of the folder; it is not read")
        except FileNotFoundError:
            if path.is_symlink():
                self.remarks.append(f"{name} is a link to nothing")
        except (OSError, RuntimeError) as error:
            self.remarks.append(f"{name} cannot be read: {error}")
        return False

    def find(self, name: str) -> Path | None:
        """Return the path of a regular file inside the folder, else None, with a remark unless it is missing."""
        if self._is_inside(name):
            if (self.path / name).is_file():
                return self.path / name
            self.remarks.append(f"{name} is not a regular file; it is not read")
        return None

    def names(self, name: str) -> list[str]:
        """List the entries of a subfolder inside the folder, sorted; empty if there is none."""
        try:
            if self._is_inside(name) and (self.path / name).is_dir():
                return sorted(each.name for each in (self.path / name).iterdir())
        except OSError as error:
            self.remarks.append(f"{name} cannot be read: {error}")
        return []

    def each(self, name: str) -> Iterator[Facts]:
        """Yield the JSON objects of a file, one from each line."""
        return itertools.chain.from_iterable(self.records(name))

    def records(self, name: str) -> Iterator[list[Facts]]:
        """Yield the JSON objects of a file, as many as are read at once; remarks count lines that are none."""
        path, others, too_long = self.find(name), 0, 0
        rest, is_too_long = b"", False
        try:
            with open(path or "/dev/null", "rb") as file:
                while portion := file.read(_PORTION):
                    *lines, rest = (rest + portion).split(b"\n")
                    if lines and is_too_long:
                        del lines[0]
                        is_too_long = False
                    short = [line for line in lines if len(line) <= LONGEST_LINE]
                    values = _values(short)
                    found = [value for value in values if isinstance(value, dict)]
                    too_long += len(lines) - len(short)
                    others += sum(bool(line.strip()) for line in short) - len(found) if len(found) < len(short) else 0
                    yield found
                    if len(rest) > LONGEST_LINE:
                        too_long += not is_too_long
                        rest, is_too_long = b"", True
        except OSError as error:
            self.remarks.append(f"{name} cannot be read further: {error}")
        if rest.strip() and not is_too_long:
            if isinstance(value := parsed(rest), dict):
                yield [value]
            else:
                self.remarks.append(f"{name}: the last line is cut off and left out")
        if too_long:
            self.remarks.append(f"{name}: lines of more than {LONGEST_LINE:,} bytes are left out ({too_long:,})")
        if others:
            self.remarks.append(f"{name}: lines that are no JSON objects are left out ({others:,})")

    def json_object(self, name: str) -> Facts | None:
        """Read a file that holds one JSON object; None, with a remark unless it is missing, if it does not."""
        if (path := self.find(name)) is None:
            return None
        try:
            with path.open("rb") as file:
                value = parsed(file.read(_LARGEST_OBJECT))
        except OSError as error:
            value = error
        if not isinstance(value, dict):
            self.remarks.append(f"{name} is not a JSON object of less than {_LARGEST_OBJECT:,} bytes")
            return None
        return value
