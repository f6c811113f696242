"""A command starts without the packages that training does not need; a recipe that imports them gets them."""

import json
import sys
from pathlib import Path

from hvdgan import __main__ as commands
from launching import environment, run

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


def at_the_end_of(folder: Path, *words: str) -> dict:
    """What a Python process has loaded when it ends."""
    (folder / "sitecustomize.py").write_text(AT_THE_END)
    (folder / "theirs.py").write_text(RECIPE)
    path = f"{folder}:{environment()['PYTHONPATH']}"
    done = run([sys.executable, *words], folder, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_command_leaves_out_what_no_training_needs(tmp_path):
    words = "-m hvdgan.train --recipe tiny:Tiny --data digits --image-size 8 --global-batch-size 8 --dry-run"
    found = at_the_end_of(tmp_path, *words.split())
    assert found == {"loaded": ["tensorflow", "keras"], "collects": True, "set_aside": True}


def test_a_recipe_may_import_it(tmp_path):
    words = "-m hvdgan.train --recipe theirs:Theirs --data synthetic --image-size 8 --global-batch-size 8 --dry-run"
    found = at_the_end_of(tmp_path, *words.split())
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


def test_without_tensorflow_a_command_says_so_in_one_line(tmp_path):
    missing = "raise ModuleNotFoundError('No module named tensorflow', name='tensorflow')\n"
    (tmp_path / "tensorflow.py").write_text(missing)
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    done = run([sys.executable, "-m", "hvdgan.train"], tmp_path, PYTHONPATH=path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "hvdgan: TensorFlow is not installed for this Python; pip install 'hvdgan[cpu]'" in done.stderr
