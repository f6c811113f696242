"""Settings that differ from their defaults, and between runs."""

import json

import pytest

from hvdgan.pages import settings
from hvdgan.pages.reading import journal
from hvdgan.pages.reading.untrusted import Folder
from hvdgan.train import main as train
from run_folders import LAUNCH, write


def test_the_config_of_a_real_run_differs_in_its_flags_alone(tmp_path):
    words = "--recipe tiny:Tiny --image-size 8 --global-batch-size 4 --max-steps 1 --steps 2 --threads 1"
    words = words.replace("--threads", "--pipeline.threads")
    assert train([*words.split(), "--run-dir", str(tmp_path / "run")]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    flags = {flag: value for flag, value, _ in settings.changed(config)}
    assert flags == {
        "--recipe": "tiny:Tiny",
        "--run-dir": str(tmp_path / "run"),
        "--image-size": "8",
        "--global-batch-size": "4",
        "--max-steps": "1",
        "--pipeline.threads": "1",
    }
    assert settings.options(config, "") == [("--steps", "2"), ("--norm", "none"), ("--learning-rate", "0.001")]
    changed = journal.read(Folder(tmp_path / "run")).changed
    assert settings.options(config, changed) == [("--steps", "2")]


@pytest.mark.parametrize(
    ("paragraph", "flags"),
    [
        ("differs from the defaults: --run-dir a --nf=-1\n    --flag=false", ["--nf", "--flag"]),
        ("differs from the defaults: --run-dir a --nf -1 …", ["--nf", "--norm", "--flag"]),
        ("all settings have their defaults", []),
        ("", ["--nf", "--norm", "--flag"]),
    ],
)
def test_options_that_differ_are_those_that_the_log_names_unless_it_is_cut(tmp_path, paragraph, flags):
    first, *_ = LAUNCH.splitlines()
    paragraph = "".join(f"{first[:20]}{line}\n" for line in paragraph.splitlines())
    config = '{"nf": -1, "norm": "none", "flag": false}'
    run = write(tmp_path / "run", log=f"{first}\n{paragraph}", config=config)
    found = journal.read(Folder(run)).changed
    assert [flag for flag, _ in settings.options(json.loads(config), found)] == flags


def test_differing_settings_are_named_once_and_a_missing_one_is_not_set():
    configs = [{"seed": 0, "nf": 8, "run_dir": "a"}, {"seed": 1, "nf": 8, "run_dir": "b", "extra": [1]}]
    assert settings.differing(configs) == ["seed", "extra"]
    assert [settings.value_of(config, "extra") for config in configs] == ["not set", "[1]"]
