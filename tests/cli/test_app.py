"""A function becomes a command: its parameters are the flags; an error is one line and an exit code.
Modules: cli.errors, cli.types"""

import os
import subprocess
import sys

import pytest

from hvdgan.cli.app import command, main_of
from hvdgan.cli.errors import RankFailed, RunError, UserError
from launching import ROOT

HELP = """Add two numbers, in one process
and without a launcher.

A second paragraph."""


@command(name="add", help_text=HELP)
def add(one: int, /, *, other: int = 2) -> int | None:
    print(one + other)
    return 3 if one == 0 else None


def test_parameters_are_flags_and_what_is_returned_is_the_exit_code(capsys):
    assert (add(["5"]), add(["5", "--other", "4"]), add(["0"])) == (0, 0, 3)
    assert capsys.readouterr().out.split() == ["7", "9", "2"]


def test_one_process_alone_may_write(monkeypatch, capsys):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert add(["1"]) == 2
    assert "this command is one process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UserError("no such flag"), 2, "hvdgan: no such flag\n"),
        (RunError("the disk is full"), 1, "hvdgan: the disk is full\n"),
        (KeyboardInterrupt(), 130, "hvdgan: stopped by hand\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(capsys, error, code, text):
    @main_of(interrupted="stopped by hand")
    def failing(words):
        raise error

    assert (failing([]), capsys.readouterr().err) == (code, text)


def test_a_bug_keeps_its_traceback_where_it_arose_alone(capsys):
    @main_of()
    def failing(words):
        raise RankFailed("rank 1 failed: KeyError('data')") from (KeyError("data") if words else None)

    for words in (["here"], []):
        assert failing(words) == 1
        said = capsys.readouterr().err
        assert ("Traceback" in said) == bool(words) and said.endswith("hvdgan: rank 1 failed: KeyError('data')\n")


def test_output_that_is_no_longer_read_ends_the_command_without_a_word(tmp_path):
    """As in `hvdgan inspect ... | head`: the reader is gone before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; from hvdgan.cli.app import exit_code; sys.exit(exit_code(lambda: print(list(range(9999)))))"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, cwd=ROOT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
