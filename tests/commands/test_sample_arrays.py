"""The command hvdgan.sample on runs of arrays: ensembles for inputs of the data, and the numbers of these inputs.

Modules: inference.inputs, inference.sample_files
"""

import sys

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from hvdgan.evaluate import main as evaluate
from hvdgan.export import main as export
from hvdgan.inference.trained import load_trained
from hvdgan.recipe.drawing import SampleRandom
from hvdgan.sample import main as sample
from hvdgan.train import main as train
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
        tiny = "--recipe tiny:Tiny --image-size 8 --global-batch-size 4 --max-steps 1 --run-dir tiny".split()
        assert train(tiny) == 0
    return folder


@pytest.fixture
def folder(trained_folder, monkeypatch):
    monkeypatch.chdir(trained_folder)
    return trained_folder


def test_each_input_is_used_for_all_its_members_in_a_row(folder):
    """Each sample is what the generator makes of the input of its index and of the noise of its number."""
    flags = ["run", "--num", "7", "--members", "3", "--seed", "5", "--batch-size", "4", "--overwrite"]
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


def test_members_do_not_depend_on_how_many_are_computed_at_a_time(folder):
    flags = ["run", "--members", "3", "--overwrite"]
    assert sample([*flags, "--num", "9", "--batch-size", "2", "--out", "two.npz"]) == 0
    assert sample([*flags, "--num", "5", "--batch-size", "16", "--out", "all.npz"]) == 0
    two, everything = np.load("two.npz"), np.load("all.npz")
    np.testing.assert_array_equal(two["index"][:5], everything["index"])
    np.testing.assert_allclose(two["samples"][:5], everything["samples"], rtol=1e-4, atol=1e-5)


def test_without_the_flag_each_input_has_one_sample(folder):
    assert sample(["run", "--num", "12", "--out", "s.h5", "--overwrite"]) == 0
    with h5py.File("s.h5") as file:
        assert sorted(file["index"][:]) == list(range(12))
        assert file["samples"].shape == (12, 12, 20, 2)


def test_the_index_counts_in_the_data_that_are_named(folder):
    assert sample(["run", "--num", "10", "--members", "2", "--data", "other.npz", "--out", "o.npz"]) == 0
    assert sorted(np.load("o.npz")["index"]) == sorted(2 * list(range(5)))


def test_a_run_that_starts_from_nothing_has_no_index_and_no_members(folder, capsys):
    assert sample(["tiny", "--num", "2", "--out", "t.npz"]) == 0
    assert set(np.load("t.npz").files) == {"samples"}
    capsys.readouterr()
    assert sample(["tiny", "--num", "4", "--members", "2", "--out", "u.npz"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--members 2" in line and "leave the flag out" in line


def test_members_of_an_interpolation_are_refused(folder, capsys):
    """A path between two members of one input is drawn without the flag."""
    assert sample(["run", "--num", "3", "--interpolate", "1", "2", "--out", "i.npz"]) == 0
    path = np.load("i.npz")
    assert len(set(path["index"])) == 1 and np.abs(np.diff(path["samples"], axis=0)).max(axis=(1, 2, 3)).min() > 1e-4
    capsys.readouterr()
    assert sample(["run", "--num", "4", "--interpolate", "1", "2", "--members", "2", "--out", "j.npz"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--members 2: an interpolation starts from one input" in line


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_arrays_from_0_to_255_are_no_pictures(tmp_path, monkeypatch, dtype):
    """Samples and exports have the numbers of the data, neither rounded nor clipped."""
    monkeypatch.chdir(tmp_path)
    np.save("f.npy", np.random.default_rng(0).uniform(0, 255, (16, 8, 8, 1)).astype(dtype))
    flags = "--recipe tiny:Tiny --data f.npy --values range:0,255 --global-batch-size 4 --steps 1 --run-dir run".split()
    assert train(flags) == 0
    assert sample(["run", "--num", "3", "--seed", "5", "--out", "s.npy"]) == 0
    assert export(["run", "--network", "generator", "--out", "g.keras"]) == 0
    latents = SampleRandom(5, tf.range(3, dtype=tf.int64)).scoped("draw").normal("latents", (8,))
    trained = load_trained(tmp_path / "run")
    assert not trained.recipe.data.is_pictures
    expected = (trained.nets("averaged").generator(latents).numpy() + 1) * 127.5
    drawn = np.load("s.npy")
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn, expected, rtol=1e-4)
    np.testing.assert_allclose(keras.models.load_model("g.keras")(latents), expected, rtol=1e-4)


def test_8_bit_pictures_whose_axes_are_named_are_pictures(tmp_path, monkeypatch):
    """Arrays need the map of pictures then; samples are PNG, and networks of pictures such as Inception take them."""
    monkeypatch.chdir(tmp_path)
    np.save("first.npy", np.random.default_rng(0).integers(0, 256, (16, 3, 8, 8), np.uint8))
    flags = "--recipe tiny:Tiny --data first.npy --axes CHW --values range:0,255 --global-batch-size 4"
    flags = [*flags.split(), "--steps", "1"]
    assert train([*flags, "--run-dir", "run"]) == 0
    assert load_trained(tmp_path / "run").recipe.data.is_pictures
    assert sample(["run", "--num", "2", "--separate", "--out", "made"]) == 0
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["000000.png", "000001.png"]
    assert evaluate(["run", "--num", "8"]) == 0
    assert evaluate(["run", "--num", "8", "--data", "first.npy"]) == 0


MAPS = """
import numpy as np

def squash(x):
    return np.arcsinh(x / {scale})

def unsquash(y):
    return {scale} * np.sinh(y)
"""


def test_an_edited_map_of_ones_own_is_refused(tmp_path, monkeypatch, capsys):
    """Until a resumed run adopts it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python takes it for new within the second of a change

    def write(scale, more=""):
        (tmp_path / "edited_maps.py").write_text(MAPS.format(scale=scale) + more)
        sys.modules.pop("edited_maps", None)

    def refused(command, *words):
        capsys.readouterr()
        assert command([*words]) == 2
        (line,) = (each for each in capsys.readouterr().err.splitlines() if each.startswith("hvdgan: "))
        return line

    np.save("f.npy", np.random.default_rng(0).normal(0, 5, (16, 8, 8, 1)).astype(np.float32))
    flags = "--recipe tiny:Tiny --data f.npy --values edited_maps:squash,unsquash --global-batch-size 4".split()
    draw = ["run", "--num", "2", "--overwrite", "--out", "s.npy"]
    write(3)
    assert train([*flags, "--steps", "1", "--run-dir", "run"]) == 0
    capsys.readouterr()
    assert sample(draw) == 0 and f"{tmp_path}/edited_maps.py" in capsys.readouterr().err  # it says what code it calls
    write(3.5)
    commands = [(sample, *draw), (export, "run", "--network", "generator", "--out", "g.npz"), (evaluate, "run")]
    for command, *words in commands:
        line = refused(command, *words)
        assert "edited_maps.py, whose functions map the images, has changed since the run was trained" in line
        assert line.endswith("resuming the run for a step with --allow-changed data")
    line = refused(train, *flags, "--steps", "2", "--run-dir", "run")
    assert "another value map of the images: channel 0 has edited_maps:squash,unsquash, and " in line
    assert train([*flags, "--steps", "2", "--run-dir", "run", "--allow-changed", "values"]) == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "warning: the value map of the images has changed: channel 0 has edited_maps:squash,unsquash, and" in log
    assert sample(draw) == 0
