"""Evaluations that cannot be done: what is refused before the first one, and what an error of one rank does.

Modules: evaluation.of_run, training.periodic.
"""

import json
import math
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from building import tiny_run
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import UserError
from hvdgan.distributed.ranks import Ranks
from hvdgan.evaluate import main as evaluate
from hvdgan.evaluation.of_run import measure_for
from hvdgan.evaluation.real_statistics import edges_of
from hvdgan.evaluation.sets import RealSet
from hvdgan.train import main as train
from launching import launcher, run
from tiny import Tiny
from tiny_arrays import UNITS, volumes

SMALL = "--global-batch-size 8 --report never".split()
TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 8 --steps 4 --eval-every 2 --checkpoint-every 2".split()
OWN = [*TINY, *"--eval-samples 40 --eval-features own:f --run-dir run --report never".split()]


class Dense(Tiny):
    """Networks for samples of any shape."""

    def networks(self):
        shape = self.data.shape
        flat = [layers.Flatten(), layers.Dense(1, dtype="float32")]
        made = [layers.Dense(math.prod(shape)), layers.Reshape(shape, dtype="float32")]
        return {
            "generator": keras.Sequential([keras.Input((8,)), *made], name="generator"),
            "discriminator": keras.Sequential([keras.Input(shape), *flat], name="discriminator"),
        }


@pytest.mark.parametrize("shape", [(8, 8, 20), (40,)])
def test_arrays_may_have_many_channels_and_more_samples_than_the_bins_are_made_of(tmp_path, shape):
    numbers = np.random.default_rng(0).normal(0, 1, (900, *shape)).astype(np.float32)
    np.save(tmp_path / "many.npy", numbers)
    axes = {"axes": "HWC"} if shape[1:] else {}
    settings = {"data": str(tmp_path / "many.npy"), "arrays": ArrayConfig(values="standard", **axes)}
    made = tiny_run(Dense, image_size=None, **settings)
    reals = RealSet(made.source, made.recipe.data, count=900, batch_size=16, threads=1)
    edges = edges_of(reals, made.recipe.data, Ranks())
    assert edges.shape == (shape[-1], 1001) and np.all(edges[:, 0] < -2) and np.all(edges[:, -1] > 2)


def test_a_batch_of_samples_that_are_more_than_it_holds_is_refused():
    class Doubling(Tiny):
        def sample(self, nets, batch):
            return tf.repeat(nets.generator(batch.latents), 2, axis=0)

    with pytest.raises(UserError, match=r"sample\(\) returns .*at most 16 for a batch of 16"):
        tiny_run(Doubling, eval_samples=40)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module `own` of features into the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text):
        sys.modules.pop("own", None)
        (tmp_path / "own.py").write_text(f"import os\nimport tensorflow as tf\n\ndef f(x):\n{text}")

    yield write
    sys.modules.pop("own", None)


def test_features_whose_covariance_would_fill_the_memory_are_refused(module):
    module("    return tf.tile(tf.reshape(x, (-1, 64)), (1, 400))\n")
    with pytest.raises(UserError, match=r"own:f: 25,600 features of a sample, whose covariance would take 5 GB"):
        tiny_run(eval_samples=100, eval_features="own:f")


def test_the_recipes_features_of_samples_without_conditions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ecal, _ = volumes("v.npz")
    np.save("others.npy", ecal)
    flags = ["--data", "v.npz:ECAL", "--axes", "DHW", "--conditions", "energy,theta", *UNITS, "--steps", "2"]
    for kind in ("Featured", "Conditioned"):
        assert train(["--recipe", f"tiny_arrays:{kind}", *flags, "--run-dir", kind, *SMALL]) == 0
    words = ["--images", "others.npy", "--eval-features", "recipe", "--num", "40"]
    assert evaluate(["Featured", *words]) == 0
    record = json.loads((tmp_path / "Featured" / "evaluation.jsonl").read_text())
    assert math.isfinite(record["eval/frechet"]) and "eval/condition_correlation" not in record
    capsys.readouterr()
    assert evaluate(["Conditioned", *words]) == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("hvdgan: ")]
    assert "features(), without conditions for these samples, fails: " in line
    assert "tiny_arrays.py, line" in line


class Labelled(Tiny):
    """Features that depend on the classes of the data."""

    def features(self, nets, batch):
        return tf.one_hot(batch.labels, 10)


class OfOthers(RealSet):
    """Samples of another program, whose classes have other names."""

    class_names = ("a", "b")


def test_the_recipes_features_get_no_labels_of_other_classes():
    made = tiny_run(Labelled, eval_samples=40, eval_features="recipe")
    spec, how = made.recipe.data, {"count": 40, "batch_size": 16, "threads": 1}
    reals = RealSet(made.source, spec, **how)

    def measure(kind):
        both = kind(made.source, spec, **how), reals
        return measure_for(made.config.evaluation, made.recipe, made.state.sampling_nets, spec, both, 16)

    assert measure(RealSet).plan.dimension == 10
    with pytest.raises(UserError, match=r"features\(\), without labels for these samples, fails: "):
        measure(OfOthers)


FAILING = """    flat = tf.reshape(x, (tf.shape(x)[0], 64))
    if os.environ.get("HOROVOD_RANK", "RANK") == "RANK" and x.shape[0] > 2:
        with tf.control_dependencies([tf.debugging.assert_less(flat, -0.9, "odd features")]):
            return flat[:, :8] + 0.0
    return flat[:, :8]
"""


def test_a_run_is_saved_before_an_unexpected_error_ends_it(module, tmp_path, capsys):
    """The two samples of the first call pass, the real ones do not."""
    module(FAILING)
    assert train(OWN) == 1
    assert "odd features" in capsys.readouterr().err
    assert (tmp_path / "run" / "checkpoints" / "step-00000002" / "manifest.json").is_file()


def test_all_ranks_save_before_an_unexpected_error_of_one_ends_them(module, tmp_path):
    """Then hvdgan.evaluate ends with it, too: it does not skip to the next checkpoint."""
    module(FAILING.replace('"RANK") == "RANK"', '"0") == "1"'))
    done = run([*launcher(2), sys.executable, "-m", "hvdgan.train", *OWN], tmp_path, forked=True)
    assert done.returncode != 0 and "rank 1 failed" in done.stderr
    logged = (tmp_path / "run" / "log.txt").read_text()
    assert "stopped: rank 1 failed: InvalidArgumentError: " in logged and "odd features" in logged
    tracebacks = [line for line in done.stderr.splitlines() if "Traceback" in line]
    assert any(line.startswith("[1]") for line in tracebacks), done.stderr
    assert not any(line.startswith("[0]") for line in tracebacks) and "odd features" in done.stderr
    assert (tmp_path / "run" / "checkpoints" / "step-00000002" / "manifest.json").is_file()
    words = "run --all-checkpoints --samples 40 --batch-size 16".split()
    done = run([*launcher(2), sys.executable, "-m", "hvdgan.evaluate", *words], tmp_path, forked=True)
    assert done.returncode != 0 and "rank 1 failed" in done.stderr and "skipped" not in done.stderr


HUNGRY = """

def hungry(x):
    if os.environ.get("HOROVOD_RANK") == "1" and len(x) > 2:
        raise MemoryError("no room")
"""


def test_a_rank_without_memory_for_an_evaluation_says_so_in_one_line(module, tmp_path):
    module(f"    tf.py_function(hungry, [x], [])\n    return tf.reshape(x, (-1, 64))[:, :8]\n{HUNGRY}")
    done = run([*launcher(2), sys.executable, "-m", "hvdgan.train", *OWN], tmp_path, forked=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("[1]") and "hvdgan: " in line]
    assert done.returncode != 0 and "rank 1 is out of memory after step 1" in lines[-1], done.stderr
    assert "hvdgan: rank 1: Traceback" not in done.stderr


def test_a_checkpoint_that_is_named_from_its_own_folder_is_one_of_its_run(tmp_path, monkeypatch):
    assert train([*TINY, "--run-dir", str(tmp_path / "run")]) == 0
    monkeypatch.chdir(tmp_path / "run" / "checkpoints")
    assert evaluate(["step-00000002", "--num", "40", "--batch-size", "16"]) == 0
    monkeypatch.chdir("step-00000004")
    assert evaluate([".", "--num", "40", "--batch-size", "16"]) == 0
    assert evaluate(["../step-00000002", "--num", "60", "--batch-size", "16"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "evaluation.jsonl").read_text().splitlines()]
    steps = ["step-00000002", "step-00000004", "step-00000002"]
    assert [line["checkpoint"] for line in lines] == [str(tmp_path / "run" / "checkpoints" / step) for step in steps]
