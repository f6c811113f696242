"""The quality benchmark of calo3d, shortened: it accepts the truth and nothing else, and its command runs."""

import json
import sys

import numpy as np
import pytest

from launching import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "examples" / "data"))
import calo3d_quality
import showers


@pytest.fixture(scope="module")
def truth():
    energy, theta = showers.particles(500, seed=1)
    return showers.showers(energy, theta, 16, seed=1), energy, theta


def judged(truth, made):
    true, energy, theta = truth
    return calo3d_quality.judge(true, made, energy, calo3d_quality.profiles_of(true, made, energy, theta))


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda true: 1.06 * true, {"response", "longitudinal", "rows", "columns"}),
        (lambda true: np.roll(true, 1, axis=1), {"longitudinal"}),
        (lambda true: np.roll(true, 1, axis=2), {"rows"}),
        # Tilted the other way; the columns of all angles are symmetric for many more showers only.
        (lambda true: true[..., ::-1], {"columns", "columns, left", "columns, right"}),
    ],
)
def test_a_change_of_one_kind_misses_the_goals_of_that_kind(truth, change, wrong):
    figures = judged(truth, change(truth[0]))
    assert set(figures["missed"]) == wrong and not figures["reached"]


@pytest.mark.long
def test_its_command_runs_and_a_goal_that_is_missed_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(calo3d_quality, "COMMAND", "--nf 2 --global-batch-size 4 --steps 2 --r1-every 2")
    words = ["--run", tmp_path, "--num", 30, "--samples", 40, "--out", tmp_path / "o.json"]
    monkeypatch.setattr(sys, "argv", ["calo3d_quality.py", *map(str, words)])
    with pytest.raises(SystemExit, match="not reached"):
        calo3d_quality.main()
    figures = json.loads((tmp_path / "o.json").read_text())
    assert figures["worst"] > 0.05 and len(figures["largest_errors"]["response"]) == 5
