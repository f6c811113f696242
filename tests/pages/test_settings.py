"""Settings that differ from their defaults, and between runs."""

import json

from hvdgan.pages import settings
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
    assert settings.options(config) == [("--steps", "2"), ("--norm", "none"), ("--learning-rate", "0.001")]


def test_differing_settings_are_named_once_and_a_missing_one_is_not_set():
    configs = [{"seed": 0, "nf": 8, "run_dir": "a"}, {"seed": 1, "nf": 8, "run_dir": "b", "extra": [1]}]
    assert settings.differing(configs) == ["seed", "extra"]
    assert [settings.value_of(config, "extra") for config in configs] == ["not set", "[1]"]
