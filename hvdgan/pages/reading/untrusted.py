"""Reads files of a folder that nobody trusts: bounded, never out of the folder, and never a device or a pipe."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

LONGEST_LINE = 1 << 20
"""bytes of a line that is read; a longer one is left out"""
LONGEST_TEXT = 1000
"""characters of a text that a page shows"""
_PORTION = 1 << 16


def plain(text: str, most: int = LONGEST_TEXT) -> str:
    """Return a text that can be shown: control characters and other invisible ones as escapes, and not too long."""
    cut = text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
    if cut.isprintable():
        return cut
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in cut
    )


def parsed(line: bytes) -> Any:
    """Return the value of a line of JSON; None if it is none, or has too many levels or digits."""
    try:
        return json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _values(lines: list[bytes]) -> list[Any]:
    """Return the values of lines of JSON, as parsed() does; all at once takes less time."""
    try:
        values: list[Any] = orjson.loads(b"[" + b",".join(lines) + b"]")
        if len(values) == len(lines):
            return values
    except (ValueError, RecursionError):  # orjson knows neither NaN nor large integers
        pass
    return [parsed(line) for line in lines]


class Folder:
    """A folder that is read and never written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._real = path.resolve()
        self.remarks: list[str] = []
        """lines for the reader of the page: what could not be read, and why"""

    def find(self, name: str | Path) -> Path | None:
        """Return the path of a regular file inside the folder, else None, with a remark unless it is missing."""
        path = self.path / name
        try:
            real = path.resolve(strict=True)
            if not real.is_relative_to(self._real):
                self.remarks.append(f"{name} is a link that leads out of the folder; it is not read")
            elif real.is_file():
                return path
            else:
                self.remarks.append(f"{name} is not a regular file; it is not read")
        except FileNotFoundError:
            if path.is_symlink():
                self.remarks.append(f"{name} is a link to nothing")
        except (OSError, RuntimeError) as error:
            self.remarks.append(f"{name} cannot be read: {error}")
        return None

    def names(self, name: str) -> list[str]:
        """List the entries of a subfolder inside the folder, sorted; empty if there is none."""
        path = self.path / name
        try:
            if not path.is_dir():
                return []
            if path.resolve().is_relative_to(self._real):
                return sorted(each.name for each in path.iterdir())
            self.remarks.append(f"{name} is a link that leads out of the folder; it is not read")
        except (OSError, RuntimeError) as error:
            self.remarks.append(f"{name} cannot be read: {error}")
        return []

    def lines(self, name: str) -> Iterator[bytes]:
        """Yield the lines of a file without their ends; those that are too long are counted and left out."""
        for lines in self.batches(name):
            yield from lines

    def batches(self, name: str) -> Iterator[list[bytes]]:
        """Yield the lines of a file without their ends, as many as are read at once.

        Lines that are too long are counted and left out. The last line ends the file, and is empty if that ends in a
        line's end.
        """
        path, too_long = self.find(name), 0
        if path is None:
            return
        rest, is_too_long = b"", False
        try:
            with path.open("rb") as file:
                while portion := file.read(_PORTION):
                    *lines, rest = (rest + portion).split(b"\n")
                    if lines and (is_too_long or len(lines[0]) > LONGEST_LINE):
                        too_long += not is_too_long
                        is_too_long = False
                        del lines[0]
                    if lines:
                        yield lines
                    if is_too_long or len(rest) > LONGEST_LINE:
                        too_long += not is_too_long
                        rest, is_too_long = b"", True
        except OSError as error:
            self.remarks.append(f"{name} cannot be read further: {error}")
        yield [rest]
        if too_long:
            self.remarks.append(f"{name}: lines of more than {LONGEST_LINE:,} bytes are left out ({too_long:,})")

    def records(self, name: str) -> Iterator[list[dict[str, Any]]]:
        """Yield the JSON objects of a file, one from each line, as many as are read at once; count other lines."""
        unreadable, last = 0, b""
        for lines in self.batches(name):
            last, values = lines[-1], _values(lines)
            found = [value for value in values if isinstance(value, dict)]
            if len(found) < len(values):
                others = [line for line, value in zip(lines, values, strict=True) if not isinstance(value, dict)]
                unreadable += sum(map(bool, map(bytes.strip, others)))
            yield found
        if last and not isinstance(parsed(last), dict):  # the last line of all, which has no end
            unreadable -= 1
            self.remarks.append(f"{name}: the last line is cut off and left out")
        if unreadable:
            self.remarks.append(f"{name}: lines that are no JSON objects are left out ({unreadable:,})")

    def json_object(self, name: str, most: int = 1 << 22) -> dict[str, Any] | None:
        """Read a file that holds one JSON object; None, with a remark unless it is missing, if it does not."""
        path = self.find(name)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                text = file.read(most + 1)
        except OSError as error:
            self.remarks.append(f"{name} cannot be read: {error}")
            return None
        if len(text) > most:
            self.remarks.append(f"{name} is larger than {most:,} bytes; it is not read")
            return None
        value = parsed(text)
        if not isinstance(value, dict):
            self.remarks.append(f"{name} is not a JSON object")
            return None
        return value
