"""Nothing that a run folder, packed data or a file of settings names is imported or called unless it is the user's own.
Modules: settings.own_code
"""

import json
import os
import sys
from pathlib import Path

import pytest
from PIL import Image

import saved
from hvdgan import api, complete, evaluate, export, sample, slurm, train, translate
from hvdgan.data import open_source
from hvdgan.errors import UserError
from hvdgan.inference.trained import load_trained
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig
from hvdgan.settings.own_code import names_own_data

MINE = """
import functools
from subprocess import getoutput

import numpy as np

from tiny import Tiny

class Photos:
    def __init__(self, count=24):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return np.full((8, 8, 1), 10 * index, np.uint8)

class Mine(Tiny):
    pass

class Shown(Tiny):
    shows_data = True

    def completes(self):
        return True

    def sample(self, nets, batch):
        return batch.images

photos, Few = Photos(), functools.partial(Photos, 12)
"""
PLANTED = """
open({pwned!r}, "w").close()
from mine import *
"""
FLAGS = "--image-size 8 --channels 1 --global-batch-size 8 --steps 2 --eval-every 0".split()
SHELL = ("subprocess:getoutput", ["cmd=touch pwned; echo x"])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with a recipe and data of the user's own; no module of them is loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(MINE)
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    Image.new("L", (8, 8), 255).save(tmp_path / "mask.png")
    (tmp_path / "photos").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "photos" / "a.png")
    forget()
    yield tmp_path
    forget()


def forget():
    for name in ("mine", "named", "planted", "planted_package", "planted_package.inside"):
        sys.modules.pop(name, None)


def plant(folder):
    """A module of a stranger that acts when it is imported, installed or in the working folder."""
    text = PLANTED.format(pwned=str(folder / "pwned"))
    (folder / "site-packages" / "planted_package").mkdir(parents=True)
    (folder / "site-packages" / "planted_package" / "__init__.py").write_text(text)
    (folder / "site-packages" / "planted_package" / "inside.py").write_text("from mine import *")
    (folder / "planted.py").write_text(text)
    sys.path.insert(0, str(folder / "site-packages"))


def change(run, **settings):
    """Change the settings in the manifests of a run, as its writer could."""
    for path in Path(run).glob("checkpoints/*.safetensors"):
        saved.rewrite(path, lambda _, manifest: manifest["config"].update(settings))


def refused(capsys, main, *words):
    """What a command says that must end with one line and exit code 2, and must not do what was planted."""
    capsys.readouterr()
    assert main([*words]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hvdgan: ") or "Error" in line]
    assert len(said) == 1 and not Path("pwned").exists()
    return said[0]


COMMANDS = {
    "evaluate": (evaluate.main, ["--samples", "16"]),
    "sample": (sample.main, ["--samples", "2", "--out", "o.png"]),
    "complete": (complete.main, ["--image", "a.png", "--mask", "mask.png", "--out", "o.png"]),
    "translate": (translate.main, ["--data", "photos", "--out", "out"]),
    "export": (export.main, ["--only", "generator", "--out", "o.npz"]),
}


@pytest.mark.parametrize("recipe", ["planted:Mine", "planted_package:Mine", "planted_package.inside:Mine", "os:system"])
def test_no_command_imports_the_recipe_that_a_stranger_names(folder, capsys, recipe):
    """Neither an installed module nor a file of the user's own that the run was not trained with."""
    saved.untrained(folder / "run", "mine:Mine")
    plant(folder)
    change("run", recipe=recipe)
    for main, words in COMMANDS.values():
        assert f"--recipe {recipe}: " in refused(capsys, main, "run", *words)
    with pytest.raises(UserError, match=f"give --recipe {recipe}"):
        load_trained(folder / "run")
    with pytest.raises(UserError, match=f"give --recipe {recipe}"):
        api.TrainedRun(folder / "run", True, 2, {}).sample(2)


@pytest.mark.parametrize(
    ("data", "options"),
    [
        SHELL,
        ("mine:getoutput", SHELL[1]),
        ("planted:Photos", []),
        ("planted_package:Photos", []),
        ("hvdgan.files.outputs:write_text", ["path=pwned", "text=x"]),
        ("builtins:exec", ["source=open('pwned', 'w')"]),
    ],
)
def test_no_command_calls_the_data_that_a_stranger_names(folder, capsys, data, options):
    """Also not by way of what a module of the user's own, unchanged since the run, imports."""
    saved.untrained(folder / "run", "mine:Shown", data="mine:photos")
    plant(folder)
    change("run", data=data, data_options=options)
    for name in ("evaluate", "sample"):
        main, words = COMMANDS[name]
        assert data in refused(capsys, main, "run", *words)
    assert data in refused(capsys, sample.main, "run", "--standing-statistics", "2", "--out", "o.png")


def test_what_the_user_wrote_is_used_without_a_flag_as_long_as_it_is_unchanged(folder, capsys):
    words = ["--recipe", "mine:Shown", "--data", "mine:Photos", "--data-options", "count=20"]
    assert train.main([*words, *FLAGS, "--run-dir", "run"]) == 0
    forget()
    main, flags = COMMANDS["sample"]
    assert main(["run", *flags]) == 0
    assert evaluate.main(["run", "--samples", "16"]) == 0
    Path("mine.py").write_text(MINE + "\n# edited\n")
    forget()
    said = refused(capsys, main, "run", *flags, "--overwrite")
    assert "mine.py has changed since the run was trained" in said and "give --recipe mine:Shown" in said
    named = ["--recipe", "mine:Shown", "--overwrite"]
    assert "give --data mine:Photos" in refused(capsys, main, "run", *flags, *named)
    assert main(["run", *flags, *named, "--data", "mine:Photos"]) == 0


def test_a_run_of_this_process_samples_whatever_its_code_is(folder):
    """A class of a notebook has no file, and data of an installed package are named by the call."""
    plant(folder)
    (folder / "pwned").touch()
    run = api.fit(recipe="planted_package:Shown", data="planted_package:photos", run_dir="run", steps=2, report=None)
    assert run.sample(3).shape == (3, 8, 8, 1)


FILES = {
    "recipe": {"recipe": "planted_package:Mine"},
    "data": {"data": SHELL[0], "data_options": SHELL[1]},
    "data, nested": {"config": {"data": SHELL[0], "data_options": SHELL[1]}},
    "installed data": {"data": "planted_package:photos"},
    "other data": {"recipe": "cyclegan", "data": "photos", "other_data": [SHELL[0]]},
    "logger": {"logger": ["subprocess:getoutput"], "run_dir": "touch pwned"},
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_settings_names_code_of_the_users_own_alone(folder, capsys, kind):
    plant(folder)
    Path("s.json").write_text(json.dumps(FILES[kind]))
    for words in ([], ["--help"]) if "recipe" in kind else ([],):
        refused(capsys, train.main, "--config", "s.json", *words, *([] if words else ["--global-batch-size", "8"]))
    if kind in ("recipe", "data", "logger", "installed data"):
        Path("runs.json").write_text(json.dumps([FILES[kind]]))
        refused(capsys, slurm.main, "--array", "runs.json", "--", "--global-batch-size", "8")


def test_a_file_of_settings_may_name_what_is_the_users_own_or_what_the_command_line_names_too(folder):
    plant(folder)
    (folder / "pwned").touch()
    settings = {"recipe": "mine:Mine", "data": "mine:Few", "image_size": 8, "channels": 1, "global_batch_size": 8}
    Path("s.json").write_text(json.dumps({**settings, "steps": 2, "report": "never"}))
    assert train.main(["--config", "s.json", "--run-dir", "one"]) == 0
    Path("s.json").write_text(json.dumps({**settings, "data": "planted:photos", "recipe": "planted_package:Mine"}))
    named = ["--recipe", "planted_package:Mine", "--data=planted_package:photos", "--steps", "2"]
    assert train.main(["--config", "s.json", "--run-dir", "two", *named]) == 0


@pytest.mark.parametrize("data", ["subprocess:getoutput", "mine:getoutput", "mine:np"])
def test_a_function_of_the_standard_library_is_no_data_on_the_command_line_either(folder, data):
    with pytest.raises(UserError, match=data) as caught:
        open_source(Config(data=data, data_options=SHELL[1]))
    assert "\n" not in str(caught.value) and not os.path.exists("pwned")


def test_a_file_of_arrays_that_is_not_there_yet_is_no_module_of_its_first_name(tmp_path, monkeypatch):
    """As shapes.h5, which shapes.py is about to write."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes.py").write_text("raise SystemExit\n")
    (tmp_path / "pack").mkdir()
    assert not names_own_data("shapes.h5:x") and names_own_data("shapes:x") and names_own_data("pack.faces:Faces")


def test_what_the_users_own_file_has_made_of_anothers_code_is_theirs(tmp_path, monkeypatch):
    """A partial or a bound method; a class that is merely imported is named where it is defined."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "thirdlib_of_test.py").write_text(
        "import numpy as np\n\n\nclass Fields:\n    def __init__(self, n=8):\n        self.n = n\n\n"
        "    def __len__(self):\n        return self.n\n\n    def __getitem__(self, index):\n"
        "        return np.full((4, 4), index / self.n, np.float32)\n\n    def again(self):\n        return self\n"
    )
    (tmp_path / "made_of_test.py").write_text(
        "import functools\n\nfrom thirdlib_of_test import Fields\n\n"
        "source = functools.partial(Fields, n=6)\nmethod = Fields(5).again\n"
    )
    monkeypatch.chdir(tmp_path)
    for path in (folder, tmp_path):
        monkeypatch.syspath_prepend(path)
    for name, count in (("made_of_test:source", 6), ("made_of_test:method", 5), ("thirdlib_of_test:Fields", 8)):
        assert len(open_source(Config(data=name, arrays=ArrayConfig(values="none")))) == count
    with pytest.raises(UserError, match="thirdlib_of_test:Fields itself"):
        open_source(Config(data="made_of_test:Fields", arrays=ArrayConfig(values="none")))
