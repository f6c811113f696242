"""The quality benchmark of downscale, shortened: its measures are right, and its commands run."""

import json
import sys

import numpy as np
import pytest

from launching import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "examples" / "data"))
import downscale_quality
import random_fields

SIZE = 16


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in {"SIZE": SIZE, "SAMPLES": 24, "INPUTS": 3, "MEMBERS": 3}.items():
        monkeypatch.setattr(downscale_quality, name, value)
    training = "--nf 2 --blocks 1 --noise-channels 2 --periodic both --global-batch-size 4 --steps 2"
    monkeypatch.setattr(downscale_quality, "TRAINING", training)


def test_members_like_the_truth_reach_the_goal_and_interpolation_does_not():
    heights = random_fields.orography(SIZE)
    truth, *members = (random_fields.fields(400, heights, first=1000 * number) for number in range(4))
    bicubic = np.stack([downscale_quality.interpolated(each) for each in random_fields.coarsened(truth, 4)])
    figures = downscale_quality.measure(truth, np.stack(members), bicubic, heights)
    assert figures["reached"] and figures["largest_difference_to_half_nyquist"]["bicubic"] > 0.5
    assert figures["rank_histogram"] == pytest.approx([1] * 4, abs=0.05)
    # Fields of any input, at a pixel of deviation d: d / sqrt(pi).
    climate = random_fields.multiplier(heights).mean() / np.sqrt(np.pi)
    assert figures["crps"] == pytest.approx(climate, rel=0.05)
    assert figures["best_possible_crps"] < 0.6 * climate
    assert not downscale_quality.measure(truth, np.stack([bicubic, bicubic]), bicubic, heights)["reached"]


def test_the_best_possible_error_is_that_of_the_best_linear_estimate():
    """By least squares over many fields and their inputs."""
    heights = random_fields.orography(SIZE)
    images = random_fields.fields(6000, heights, channels=1)
    inputs = random_fields.coarsened(images, 4).reshape(len(images), -1)
    weights = np.linalg.lstsq(inputs, images.reshape(len(images), -1), rcond=None)[0]
    error = images.reshape(len(images), -1) - inputs @ weights
    _, best = downscale_quality.best_possible(heights)
    assert best == pytest.approx(np.sqrt(np.mean(error**2)), rel=0.02)


def test_an_interpolated_field_keeps_what_is_smooth():
    """A wave of the length of the domain, whose blocks' means are a little lower than its values."""
    wave = np.sin(2 * np.pi * (np.arange(SIZE) + 0.5) / SIZE)
    field = np.repeat(wave[:, None, None], SIZE, axis=1)
    coarse = random_fields.coarsened(field[None], 4)[0]
    factor = coarse[0, 0, 0] / np.sin(2 * np.pi * 2 / SIZE)
    np.testing.assert_allclose(downscale_quality.interpolated(coarse), factor * field, atol=0.05)


@pytest.mark.long
def test_its_commands_run_and_a_goal_that_is_missed_is_reported(tmp_path, monkeypatch):
    words = ["--runs", tmp_path / "runs", "--out", tmp_path / "out.json", "--picture", tmp_path / "out.png"]
    monkeypatch.setattr(sys, "argv", ["downscale_quality.py", *map(str, words)])
    with pytest.raises(SystemExit, match="not reached"):
        downscale_quality.main()
    figures = json.loads((tmp_path / "out.json").read_text())
    assert np.shape(figures["spectrum_ratios"]["gan"]) == (2, SIZE // 2) and figures["minutes"] > 0
    assert len(figures["rank_histogram"]) == 4 and (tmp_path / "out.png").stat().st_size > 10_000
