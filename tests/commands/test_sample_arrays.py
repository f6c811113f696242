"""The command hvdgan.sample on runs of arrays: ensembles for inputs of the data, and the numbers of these inputs.
Modules: inference.inputs"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvdgan.export import main as export
from hvdgan.inference.trained import load_trained
from hvdgan.recipe.drawing import SampleRandom
from hvdgan.sample import main as sample
from hvdgan.train import main as train
from saved import untrained
from tiny_arrays import pairs

FLAGS = "--recipe downscale --data p.npz --constants ground --values standard --input-values standard".split()
FLAGS += (
    "--constant-values none --global-batch-size 4 --nf 2 --blocks 1 --noise-channels 3 --n-critic 1 --steps 2".split()
)


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory):
    """A run of two steps on pairs, and one of a recipe that starts from nothing."""
    folder = tmp_path_factory.mktemp("fields")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pairs(folder / "p.npz", count=12)
        pairs(folder / "other.npz", count=5)
        assert train([*FLAGS, "--run-dir", "run"]) == 0
        untrained(folder / "tiny", "tiny:Tiny")
    return folder


@pytest.fixture
def folder(trained_folder, monkeypatch):
    monkeypatch.chdir(trained_folder)
    return trained_folder


def test_each_input_is_used_for_all_its_members_in_a_row(folder):
    """Each sample is what the generator makes of the input of its index and of the noise of its number."""
    flags = ["run", "--samples", "7", "--members", "3", "--seed", "5", "--batch-size", "4", "--overwrite"]
    assert sample([*flags, "--out", "s.npz"]) == 0
    drawn, data = np.load("s.npz"), np.load("p.npz")
    index = drawn["index"]
    assert index.dtype == np.int64 and index.shape == (7,)
    assert (index[:3] == index[0]).all() and (index[3:6] == index[3]).all() and len({index[0], index[3], index[6]}) == 3
    run = load_trained(folder / "run")
    values, nets = run.recipe.data.values, run.nets("averaged")
    random = SampleRandom(5, tf.range(7, dtype=tf.int64)).scoped("draw")
    inputs = values.inputs.forward(data["inputs"][index])
    latents = random.normal("noise", (3, 5, 3))
    made = nets.generator([tf.constant(inputs), latents, tf.constant(data["ground"][None, ..., None])])
    np.testing.assert_allclose(drawn["samples"], values.images.inverse(made.numpy()), rtol=1e-4, atol=1e-5)
    assert np.abs(drawn["samples"][0] - drawn["samples"][1]).max() > 1e-3


def test_the_index_counts_in_the_data_that_are_named_where_samples_start_from_data(folder):
    assert sample(["run", "--samples", "12", "--out", "s.npz", "--overwrite"]) == 0
    assert sorted(np.load("s.npz")["index"]) == list(range(12))
    assert sample(["run", "--samples", "10", "--members", "2", "--data", "other.npz", "--out", "o.npz"]) == 0
    assert sorted(np.load("o.npz")["index"]) == sorted(2 * list(range(5)))
    assert sample(["tiny", "--samples", "2", "--out", "t.npz"]) == 0
    assert set(np.load("t.npz").files) == {"samples"}
    assert sample(["run", "--samples", "3", "--interpolate", "1", "2", "--out", "i.npz"]) == 0  # between two members
    path = np.load("i.npz")
    assert len(set(path["index"])) == 1 and np.abs(np.diff(path["samples"], axis=0)).max(axis=(1, 2, 3)).min() > 1e-4


def test_arrays_from_0_to_255_are_no_pictures(tmp_path, monkeypatch):
    """Samples and exports are neither rounded nor clipped."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    np.save("f.npy", random.uniform(0, 255, (16, 8, 8, 1)).astype(np.float32))
    flags = "--recipe tiny:Tiny --values range:0,255 --global-batch-size 4 --steps 1".split()
    assert train([*flags, "--data", "f.npy", "--run-dir", "run"]) == 0
    assert sample(["run", "--samples", "3", "--seed", "5", "--out", "s.npy"]) == 0
    assert export(["run", "--only", "generator", "--out", "g.keras"]) == 0
    latents = SampleRandom(5, tf.range(3, dtype=tf.int64)).scoped("draw").normal("latents", (8,))
    expected = (load_trained(tmp_path / "run").nets("averaged").generator(latents).numpy() + 1) * 127.5
    drawn = np.load("s.npy")
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn, expected, rtol=1e-4)
    np.testing.assert_allclose(keras.models.load_model("g.keras")(latents), expected, rtol=1e-4)
