"""The golden table of messages, tests/messages.txt: command lines, each with its exit code and the only line it prints.

After a change of a message, or for a new command line without an answer: pytest --update-messages, and read the diff.
"""

import fcntl
import shlex
from pathlib import Path

import pytest

from hvdgan.recipe.loading import known_recipes

FILE = Path(__file__).parents[1] / "messages.txt"


def _table(text: str) -> dict[str, str]:
    """The answer to each command line; empty if there is none yet."""
    entries = (entry.partition("\n") for entry in text.split("\n$ ")[1:])
    return {line: answer.strip() for line, _, answer in entries}


def refused(command: str) -> list[str]:
    """The arguments of each command line of a command in the table, as one word or several."""
    begin = f"hvdgan {command} "
    found = [line.removeprefix(begin) for line in _table(FILE.read_text()) if f"{line} ".startswith(begin)]
    assert found, f"{FILE} has no command line of hvdgan {command}"
    return found


class Messages:
    """Compares what commands answer with the table; made by the fixture `messages`.

    Args:
        update: whether to write the table anew instead.
    """

    def __init__(self, update: bool, capsys: pytest.CaptureFixture[str]) -> None:
        self._update, self._capsys = update, capsys

    def refuses(self, command, main, arguments: str, *more: str, folder: Path | None = None) -> None:
        """Run a command that must end with one line and without a change to the files of a folder.

        Args:
            main: the command's function, or one that returns its exit code and what it printed to standard error.
            more: arguments besides those of the table.
            folder: folder that must stay as it is; its path is written as FOLDER in the table.
        """
        before, _ = _files(folder), self._capsys.readouterr()
        answer = main([*shlex.split(arguments), *more])
        code, said = answer if isinstance(answer, tuple) else (answer, self._capsys.readouterr().err)
        lines = [line for line in said.splitlines() if line.startswith("hvdgan: ") or "Traceback" in line]
        assert code in (1, 2) and len(lines) == 1, said
        line = lines[0].replace(str(folder or "/nowhere else"), "FOLDER").replace(", ".join(known_recipes()), "RECIPES")
        self.check(f"hvdgan {command} {arguments}".strip(), f"{code} {line}")
        assert _files(folder) == before

    def check(self, command_line: str, answer: str) -> None:
        """Compare an answer with the table, or write it there."""
        if not self._update:
            assert _table(FILE.read_text())[command_line] == answer
            return
        with FILE.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read()
            entries = {**_table(text), command_line: answer}
            file.seek(0)
            file.truncate()
            file.write(text.partition("\n$ ")[0])
            file.writelines(f"\n$ {line}\n{said}" for line, said in entries.items())
            file.write("\n")


def _files(folder: Path | None) -> dict[Path, int]:
    """All that is in a folder but locks, by the time of its last change."""
    found = folder.rglob("*") if folder else ()
    return {path: path.lstat().st_mtime_ns for path in found if path.is_file() and path.name != ".lock"}
