"""The command hvdgan.evaluate where something has changed since an earlier evaluation, or changes during one: the
classes of the data, the weights, the recipe's code, the checkpoints.

Modules: inference.evaluating, inference.inputs, inference.following.
"""

import json
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

from hvdgan.distributed.ranks import Ranks
from hvdgan.evaluate import main as evaluate
from hvdgan.inference.evaluating import CheckpointDeleted, Evaluating, EvaluationRequest
from hvdgan.train import main as train
from launching import launcher, run

TINY = "--image-size 8 --channels 1 --global-batch-size 8 --checkpoint-every 2 --keep 0".split()
FEW = "--num 60 --batch-size 16".split()


def records(folder):
    path = folder / "evaluation.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def refused(capsys):
    """The line with which the command has refused."""
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("hvdgan: ")]
    return line


# classes of other data


@pytest.fixture
def classes(tmp_path, monkeypatch):
    """A function that writes a folder of twenty pictures of each of some classes."""
    monkeypatch.chdir(tmp_path)

    def write(folder, names):
        for name in names:
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(20):
                pixels = np.random.default_rng([ord(name), number]).integers(0, 256, (8, 8), np.uint8)
                Image.fromarray(pixels).save(tmp_path / folder / name / f"{number}.png")

    write("trained", "abc")
    return write


def test_classes_of_other_data_must_be_those_of_the_run(classes, tmp_path, capsys):
    assert train(["--recipe", "tiny:Conditional", *TINY, "--data", "trained", "--steps", "2", "--run-dir", "run"]) == 0
    classes("same", "abc")
    classes("some", "bc")
    assert evaluate(["run", *FEW, "--data", "same"]) == 0
    capsys.readouterr()
    assert evaluate(["run", *FEW, "--data", "some"]) == 2
    assert "--data some: 2 classes, and 3 in training, which differ in a; give data of the same classes" in refused(
        capsys
    )
    (same,) = records(tmp_path / "run")
    assert same["eval/intra_sliced_wasserstein"] > 0


# what is measured anew


def test_other_weights_at_the_same_step_are_measured_anew(tmp_path):
    words = ["--recipe", "tiny:Tiny", *TINY, "--steps", "4", "--run-dir", str(tmp_path)]
    assert train(words) == 0
    assert evaluate([str(tmp_path), *FEW]) == evaluate([str(tmp_path), *FEW]) == 0
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000004")
    assert train([*words, "--learning-rate", "0.5", "--allow-changed", "learning_rate"]) == 0
    assert evaluate([str(tmp_path), *FEW]) == 0
    before, after = records(tmp_path)
    assert (before["run_id"], before["step"]) == (after["run_id"], after["step"])
    assert before["eval/histogram"] != after["eval/histogram"]


JUDGING = """
import tensorflow as tf
from tiny import Tiny

class Judging(Tiny):
    def features(self, nets, batch):
        return {scale} * tf.reshape(batch.images, (-1, 64))[:, :5]
"""


def test_a_recipe_that_was_edited_is_measured_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(scale):
        (tmp_path / "judging_recipe.py").write_text(JUDGING.format(scale=scale))
        sys.modules.pop("judging_recipe", None)

    write(1)
    assert train(["--recipe", "judging_recipe:Judging", *TINY, "--steps", "2", "--run-dir", "run"]) == 0
    for scale in (1, 1, 10, 10):
        write(scale)
        assert evaluate(["run", *FEW, "--eval-features", "recipe"]) == 0
    before, after = records(tmp_path / "run")
    assert after["eval/frechet"] == pytest.approx(100 * before["eval/frechet"], rel=1e-3)


FROZEN = """
import numpy as np
import tensorflow as tf
from tiny import Tiny

class Judging(Tiny):
    def features(self, nets, batch):
        return np.load("scale.npy") * tf.reshape(batch.images, (-1, 64))[:, :5]
"""


def test_weights_of_another_file_with_which_a_recipe_computes_features_are_noticed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "frozen_features.py").write_text(FROZEN)
    np.save("scale.npy", np.float32(1))
    assert train(["--recipe", "frozen_features:Judging", *TINY, "--steps", "2", "--run-dir", "run"]) == 0
    for scale in (1, 1, 3):
        np.save("scale.npy", np.float32(scale))
        assert evaluate(["run", *FEW, "--eval-features", "recipe"]) == 0
    before, after = records(tmp_path / "run")
    assert after["eval/frechet"] == pytest.approx(9 * before["eval/frechet"], rel=1e-3)


# checkpoints that are gone or damaged

PRUNING = """
import os
import shutil
from pooled import pooled

def features(pictures):
    shutil.rmtree(os.path.join("run", "checkpoints", "step-00000004"), ignore_errors=True)
    return pooled(pictures)
"""


@pytest.fixture
def followed(tmp_path, monkeypatch):
    """A run with checkpoints after 2, 4 and 6 steps."""
    monkeypatch.chdir(tmp_path)
    assert train(["--recipe", "tiny:Tiny", *TINY, "--steps", "6", "--run-dir", "run"]) == 0
    (tmp_path / "pruning.py").write_text(PRUNING)
    return tmp_path / "run"


@pytest.mark.parametrize("which", ["--all-checkpoints", "--watch"])
def test_a_checkpoint_that_is_deleted_during_an_evaluation_is_skipped(followed, capsys, which):
    """The features delete it when they are opened, while the first checkpoint is measured."""
    assert evaluate(["run", *FEW, "--eval-features", "pruning:features", which]) == 0
    assert [record["step"] for record in records(followed)] == [2, 6]
    said = capsys.readouterr().err
    assert said.count("step-00000004 is gone, deleted by training") == (which == "--all-checkpoints")


@pytest.mark.long
def test_several_ranks_skip_a_checkpoint_that_is_deleted(followed, tmp_path):
    words = "-m hvdgan.evaluate run --samples 60 --batch-size 16 --eval-features pruning:features --all-checkpoints"
    done = run([*launcher(2), sys.executable, *words.split()], tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    assert [record["step"] for record in records(followed)] == [2, 6]


def test_the_only_checkpoint_that_is_asked_for_must_be_there(followed):
    asked = EvaluationRequest(
        num=60,
        real_samples=None,
        weights="averaged",
        seed=None,
        truncation=1.0,
        batch_size=16,
        standing_statistics=None,
        data=None,
        images=None,
        features={},
    )
    checkpoint = followed / "checkpoints" / "step-00000004"
    evaluating = Evaluating(followed, asked, Ranks(), print)
    shutil.rmtree(checkpoint)
    with pytest.raises(CheckpointDeleted, match=f"^{checkpoint} is gone, deleted by training as its --keep says, "):
        evaluating(checkpoint)


@pytest.mark.parametrize("step", [4, 6])
def test_a_damaged_manifest_is_named_while_a_run_is_watched(followed, capsys, step):
    (followed / "checkpoints" / f"step-{step:08}" / "manifest.json").write_text("{")
    assert evaluate(["run", *FEW, "--watch"]) == 1
    assert [record["step"] for record in records(followed)] == [each for each in (2, 4, 6) if each != step]
    line = refused(capsys)
    assert f"checkpoints that could not be evaluated: run/checkpoints/step-{step:08}" in line
