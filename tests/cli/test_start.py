"""A command starts without the packages that training does not need; a recipe that imports them gets them.

A function becomes a command: its parameters are the flags; an error is one line and an exit code.
Modules: cli.app, errors, settings.types, recipe.display"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvdgan import __main__ as commands
from hvdgan.cli.app import command, main_of
from hvdgan.errors import RankFailed, RunError, UserError
from launching import ROOT, environment, run

# Python reads it in every process that has its folder on the path.
AT_THE_END = """
import atexit, gc, json, sys

def tell():
    loaded = [name for name in ("tensorflow", "keras", "sklearn", "matplotlib") if name in sys.modules]
    print(json.dumps({"loaded": loaded, "collects": gc.isenabled(), "set_aside": gc.get_freeze_count() > 0}))

atexit.register(tell)
"""
ONE_AFTER_THE_OTHER = """
import json, sys
from hvdgan.__main__ import COMMANDS, main

ends = {}
helped = [*(f"{name} --help" for name in COMMANDS), "train --recipe stylegan2 --help-all"]
for line in [*helped, *json.loads(sys.argv[1])]:
    sys.argv = ["hvdgan", *line.split()]
    try:
        code = main()
    except SystemExit as end:
        code = end.code or 0
    ends[line] = [code, "tensorflow" in sys.modules]
print(json.dumps(ends))
"""
RECIPE = """
import matplotlib.pyplot
import sklearn.cluster
from tiny import Tiny as Theirs
"""


def at_the_end_of(folder: Path, *words: str, **env: str) -> dict:
    """What a Python process has loaded when it ends."""
    (folder / "sitecustomize.py").write_text(AT_THE_END)
    (folder / "theirs.py").write_text(RECIPE)
    path = f"{folder}:{environment()['PYTHONPATH']}"
    done = run([sys.executable, *words], folder, PYTHONPATH=path, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_command_leaves_out_what_no_training_needs(tmp_path):
    words = "-m hvdgan.train --recipe tiny:Tiny --data digits --image-size 8 --global-batch-size 8 --dry-run"
    found = at_the_end_of(tmp_path, *words.split())
    assert found == {"loaded": ["tensorflow", "keras"], "collects": True, "set_aside": True}


@pytest.mark.long
def test_a_recipe_may_import_it_whatever_windows_it_would_draw_into(tmp_path):
    words = "-m hvdgan.train --recipe theirs:Theirs --data synthetic --image-size 8 --global-batch-size 8 --dry-run"
    found = at_the_end_of(tmp_path, *words.split(), MPLBACKEND="of no matplotlib")
    assert found["loaded"] == ["tensorflow", "keras", "sklearn", "matplotlib"]


def test_help_and_a_missing_path_need_no_tensorflow(tmp_path):
    """Each command in its turn in one process, as `hvdgan COMMAND` starts it."""
    missing = [
        "sample no-run --out a.png",
        "evaluate no-run",
        "export no-run --out network",
        "complete no-run --image a.png --mask b.png --out c.png",
        "translate no-run --data a --out b",
        "inspect no-run",
        "report no-run",
        "prepare no-data packed",
        "train --data no-data",
        "train --config no-config.json",
    ]
    done = run([sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(missing)], tmp_path)
    ends = json.loads(done.stdout.splitlines()[-1])
    helped = {f"{name} --help": [0, False] for name in commands.COMMANDS}
    helped["train --recipe stylegan2 --help-all"] = [0, False]
    assert ends == helped | {line: [2, False] for line in missing}, done.stderr
    errors = done.stderr.splitlines()
    assert len(errors) == len(missing) and all("no-" in line for line in errors), done.stderr


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 75), ("SIGUSR1", 75), ("SIGUSR2", 75), ("SIGINT", 130)])
def test_a_signal_while_libraries_are_imported_is_one_line_of_rank_0(tmp_path, number, code):
    (tmp_path / "tensorflow.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.{number})\n")
    more = {"PYTHONPATH": f"{tmp_path}:{environment()['PYTHONPATH']}", "HOROVOD_SIZE": "2"}
    for rank in (0, 1):
        done = run([sys.executable, "-m", "hvdgan.train"], tmp_path, **more, HOROVOD_RANK=str(rank))
        assert done.returncode == code and done.stdout == ""
        assert (number in done.stderr) == done.stderr.count("\n") == (rank == 0), done.stderr


def test_without_tensorflow_a_command_says_so_in_one_line(tmp_path):
    missing = "raise ModuleNotFoundError('No module named tensorflow', name='tensorflow')\n"
    (tmp_path / "tensorflow.py").write_text(missing)
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    done = run([sys.executable, "-m", "hvdgan.train"], tmp_path, PYTHONPATH=path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "hvdgan: TensorFlow is not installed for this Python; pip install 'hvdgan[cpu]'" in done.stderr


@pytest.mark.parametrize("name", sorted({*commands.COMMANDS} - {"launch"}))
def test_a_python_without_packages_is_one_line(tmp_path, name):
    """As the system's is in the folder of a checkout."""
    done = run([sys.executable, "-S", "-m", f"hvdgan.{name}", "--help"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert re.match(r"hvdgan: (cyclopts|numpy) is not installed for this Python; pip install ", done.stderr)


def test_an_older_python_is_one_line(tmp_path):
    done = run([sys.executable, "-c", "import sys; sys.version_info = (3, 10, 13); import hvdgan.train"], tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "needs Python 3.11 or newer" in done.stderr


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
