"""The quality benchmark, shortened: its measures are right, and its commands run."""

import json
import sys

import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.data import open_source
from hvdgan.recipe.loading import load_recipe
from launching import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import quality
from digits_features import to_float


@pytest.mark.long
def test_real_digits_reach_the_goal_and_a_single_one_does_not():
    digits = to_float(open_source(Config()))
    judged = quality.judge(digits[:500])
    assert judged["reached"] and judged["classifier_accuracy"] >= 0.97 and judged["classes_found"] == 10
    assert not quality.judge(np.repeat(digits[:1], 100, axis=0))["reached"]


def test_the_mean_digit_is_a_poor_guess():
    """Its PSNR over whole images."""
    digits = to_float(open_source(Config()))
    by_hand = 10 * np.log10(4 / np.square(digits - digits.mean(axis=0)).mean(axis=(1, 2, 3))).mean()
    assert quality.OF_THE_MEAN["vae_gan"][1] == pytest.approx(by_hand, abs=0.3)


@pytest.mark.long
def test_its_commands_run_and_a_goal_that_is_missed_is_reported(tmp_path, monkeypatch):
    short = {"completion": "--nf 2 --stages completion=2,discriminator=2,joint=2", "dcgan": "--nf 2 --steps 2"}
    monkeypatch.setattr(quality, "COMMANDS", short)
    monkeypatch.setattr(quality, "SAMPLES", 20)
    monkeypatch.setattr(sys, "argv", ["quality.py", "--runs", str(tmp_path), "--out", str(tmp_path / "out.json")])
    with pytest.raises(SystemExit, match="not reached: completion, dcgan"):
        quality.main()
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["completion"]["eval/hole_psnr"] < 14.9 and figures["dcgan"]["mean_top_probability"] < 1
    assert (tmp_path / "dcgan" / "grid.png").is_file()


def test_its_commands_are_those_of_the_recipes():
    for recipe, command in quality.COMMANDS.items():
        assert command in " ".join(load_recipe(recipe).__doc__.split()), recipe
