"""Settings that differ from their defaults, and between runs."""

import json

import pytest

from hvdgan.pages import settings
from hvdgan.pages.reading import journal
from hvdgan.pages.reading.untrusted import Folder
from hvdgan.train import main as train


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
    assert settings.options(config, None) == [("--steps", "2"), ("--norm", "none"), ("--learning-rate", "0.001")]
    changed = journal.read(Folder(tmp_path / "run")).start.changed
    assert settings.options(config, changed) == [("--steps", "2")]


@pytest.mark.parametrize(
    ("changed", "flags"),
    [
        (["--run-dir a", "--nf=-1", "--flag=false"], ["--nf", "--flag"]),
        ([], []),
        (None, ["--nf", "--norm", "--flag"]),
    ],
)
def test_options_that_differ_are_those_that_the_start_names_if_it_is_known(changed, flags):
    config = {"nf": -1, "norm": "none", "flag": False}
    assert [flag for flag, _ in settings.options(config, changed)] == flags


def test_differing_settings_are_named_once_and_a_missing_one_is_not_set():
    configs = [{"seed": 0, "nf": 8, "run_dir": "a"}, {"seed": 1, "nf": 8, "run_dir": "b", "extra": [1]}]
    assert settings.differing(configs) == ["seed", "extra"]
    assert [settings.value_of(config, "extra") for config in configs] == ["not set", "[1]"]
