"""The statistics of BatchNorm, which each rank takes from its own samples, outside of training."""

import json

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.files.pictures import save_grid
from hvdgan.distributed.ranks import Ranks
from hvdgan.training.command import parse
from hvdgan.training.restore import restore
from hvdgan.training.resume_point import Commits
from hvdgan.training.run import build
from launching import train


def test_samples_and_evaluations_use_the_mean_over_ranks(tmp_path):
    """A checkpoint holds the mean, so one process that restores it draws and measures the same."""
    flags = "--recipe measured:Measured --image-size 8 --global-batch-size 16 --norm batch --holdout 0.1".split()
    flags += ["--steps", "6", "--run-dir", str(tmp_path / "run")]
    train(tmp_path, *flags, ranks=2)
    command = parse(flags)
    built = build(command.config, command.recipe, command.options, Ranks())
    restore(built, command.resume, Commits()).lock.close()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    (measured,) = [record for record in map(json.loads, lines) if "eval/made" in record]
    for name, value in built.evaluator().items():
        assert measured[name] == pytest.approx(value, rel=1e-5), name
    save_grid(tmp_path / "grid.png", built.sampler())
    mine, theirs = (Image.open(tmp_path / name) for name in ("grid.png", "run/samples/step-00000006.png"))
    assert np.max(np.abs(np.asarray(mine, np.int16) - np.asarray(theirs, np.int16))) <= 1
