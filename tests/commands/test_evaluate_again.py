"""The command hvdgan.evaluate where the data, the weights, the recipe's code or the checkpoints have changed since an
earlier evaluation, are broken, or go meanwhile. Modules: inference.evaluating, inference.inputs,
evaluation.comparison"""

import json
import sys

import numpy as np
import pytest
from PIL import Image

from hvdgan.data.store import spread
from hvdgan.evaluate import main as evaluate
from hvdgan.train import main as train

TINY = "--image-size 8 --channels 1 --global-batch-size 8 --checkpoint-every 2 --keep 0 --report never".split()
FEW = "--samples 60 --batch-size 16".split()
COUNT = 130


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def trained(recipe, *flags, steps=2):
    assert train(["--recipe", recipe, *TINY, "--steps", str(steps), "--run-dir", "run", *flags]) == 0


def records(folder):
    path = folder / "run" / "evaluation.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def refused(capsys):
    """The line with which the command has refused."""
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("hvdgan: ")]
    return line


EDITED = """
from tiny import Tiny

class Edited(Tiny):
    def sample(self, nets, batch):
        return {scale} * nets.generator(batch.latents)
"""


def test_a_recipe_that_was_edited_is_measured_anew(tmp_path):
    for scale in (1, 1, 10):
        (tmp_path / "edited_recipe.py").write_text(EDITED.format(scale=scale))
        sys.modules.pop("edited_recipe", None)
        if not (tmp_path / "run").exists():
            trained("edited_recipe:Edited")
        assert evaluate(["run", *FEW]) == 0
    before, after = records(tmp_path)
    assert before["eval/histogram"] != after["eval/histogram"]


def write(folder, most=256, numbers=range(COUNT)):
    """Write grey pictures of one size in bytes, or write some of them over."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        pixels = np.random.default_rng(number).integers(0, most, (8, 8), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.bmp")


def test_samples_that_were_written_over_are_measured_anew(tmp_path):
    """Those of another program, also where the fingerprint does not look at the ones that have changed."""
    write(tmp_path / "samples")
    trained("tiny:Tiny")
    words = ["run", "--samples", str(COUNT), "--images", "samples"]
    for _ in range(2):
        assert evaluate(words) == evaluate(words) == 0
        write(tmp_path / "samples", most=30, numbers=sorted(set(range(COUNT)) - set(spread(COUNT).tolist())))
    before, after = records(tmp_path)
    assert before["eval/histogram"] != after["eval/histogram"]
    assert before["images_fingerprint"] == after["images_fingerprint"]
    assert all(before[name] is None for name in ("weights", "ema_decay", "seed", "truncation", "precision"))


def test_broken_samples_are_counted_and_named_and_too_many_are_refused(tmp_path, capsys):
    """The run allows 1 of 100."""
    write(tmp_path / "samples")
    trained("tiny:Tiny")

    def damage(*numbers):
        for number in numbers:
            path = tmp_path / "samples" / f"{number:03}.bmp"
            path.write_bytes(path.read_bytes()[:-20])

    words = ["run", "--samples", str(COUNT), "--images", "samples"]
    damage(7)
    assert evaluate(words) == 0
    assert [record["samples"] for record in records(tmp_path)] == [COUNT - 1]
    assert f"--images samples: 1 of {COUNT} samples cannot be read; the first: 007.bmp: " in capsys.readouterr().err
    damage(3, 4)
    assert evaluate(words) == 1
    line = refused(capsys)
    assert f"--images samples: 3 of {COUNT} samples cannot be read; the first: 003.bmp: " in line
    assert "the run allows a fraction of 0.01 (--max-bad-fraction)" in line
    damage(*range(8, COUNT))
    assert evaluate(words) == 1
    assert "the distances need at least 6" in refused(capsys) and len(records(tmp_path)) == 1
