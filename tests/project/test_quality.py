"""The quality benchmark, shortened: its measures are right, and its commands run."""

import json
import sys

import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.data import open_source
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
