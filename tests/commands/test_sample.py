"""The command hvdgan.sample: pictures, arrays and ensembles for inputs of the data, its files, standing statistics.
Modules: recipe.sampling, inference.trained, inference.inputs, inference.standing, inference.sample_files"""

import shutil

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from hvdgan.data import open_source
from hvdgan.data.order import sample_indices
from hvdgan.export import main as export
from hvdgan.inference.sample_files import write_samples
from hvdgan.inference.standing import set_standing_statistics
from hvdgan.inference.trained import load_trained
from hvdgan.recipe import DataSpec
from hvdgan.recipe.display import to_uint8
from hvdgan.recipe.loading import load_recipe
from hvdgan.recipe.sampling import SampleRandom
from hvdgan.recipes.dcgan import DCGAN, DCGANOptions
from hvdgan.sample import main as sample
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig
from hvdgan.train import main as train
from hvdgan.values import sample_values
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import parse
from messages import refused
from saved import checkpoint, rewrite, tensors, untrained
from tiny import TinyOptions
from tiny_arrays import pairs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of dcgan; of completion, with a folder of images; and of recipes with classes."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "photos").mkdir()
    for number in range(6):
        Image.fromarray(np.full((32, 32), 40 * number, np.uint8)).save(folder / "photos" / f"{number}.png")
    untrained(folder / "dcgan", "dcgan", DCGANOptions(nf=2, norm="none"), DataSpec((32, 32, 1), 1797, 10), 0.1)
    options = load_recipe("completion").Options(nf=2)
    photos = {"data": str(folder / "photos"), "channels": 1}
    spec = DataSpec((32, 32, 1), 6, values=sample_values.of_pixels(1, paired=False))
    untrained(folder / "completion", "completion", options, spec, **photos)
    untrained(folder / "conditional", "tiny:Conditional", spec=DataSpec((8, 8, 1), 1797, 10), scale=0.1)
    names = ("0", "1", "10", "11", *"23456", "seven")
    named = DataSpec((8, 8, 1), 1797, 10, class_names=names)
    untrained(folder / "named", "tiny:Conditional", spec=named, scale=0.1)
    return folder


def draw(run, out, *arguments):
    """The pictures of a call that must succeed, uint8."""
    assert sample([str(run), "--separate", "--out", str(out), *map(str, arguments)]) == 0
    names = sorted(path.name for path in out.iterdir())
    assert names == [f"{number:06}.png" for number in range(len(names))]
    return np.stack([np.asarray(Image.open(out / name)) for name in names])


def test_sample_i_of_a_seed_is_the_same_with_any_others_drawn(runs, tmp_path):
    for run in ("dcgan", "conditional"):
        first = draw(runs / run, tmp_path / run / "first", "--samples", 10, "--batch-size", 4)
        fewer = draw(runs / run, tmp_path / run / "fewer", "--samples", 3, "--batch-size", 4)
        at_once = draw(runs / run, tmp_path / run / "at-once", "--samples", 10, "--batch-size", 32)
        other = draw(runs / run, tmp_path / run / "other", "--samples", 10, "--seed", 1)
        np.testing.assert_array_equal(fewer, first[:3])
        assert np.abs(at_once.astype(int) - first).max() <= 1
        assert all((first[i] != first[j]).any() for i in range(10) for j in range(i))
        assert all((first[i] != other[i]).any() for i in range(10))


def test_the_averaged_weights_of_the_checkpoint_draw_or_those_as_trained(runs, tmp_path):
    """By hand: the weights of the file are put in a new network's place."""
    four = "--samples", 4, "--seed", 7, "--batch-size", 4
    averaged = draw(checkpoint(runs / "dcgan", 2), tmp_path / "averaged", *four)
    trained = draw(checkpoint(runs / "dcgan", 2), tmp_path / "trained", *four, "--weights", "trained")
    saved = tensors(runs / "dcgan", 2)
    tf.keras.utils.clear_session()
    recipe = DCGAN(DCGANOptions(nf=2, norm="none"), DataSpec((32, 32, 1), 1797, 10))
    generator = recipe.networks()["generator"]
    latents = recipe.draw(SampleRandom(7, tf.range(4, dtype=tf.int64)).scoped("draw"))["latents"]
    by_hand = {}
    for kind in ("ema", "networks"):
        for variable in generator.variables:
            variable.assign(saved[f"{kind}/generator/{variable.path}"])
        by_hand[kind] = to_uint8(generator(latents, training=False).numpy())[..., 0].astype(int)
    assert np.abs(averaged - by_hand["ema"]).max() <= 1
    assert np.abs(trained - by_hand["networks"]).max() <= 1
    assert np.abs(by_hand["ema"] - by_hand["networks"]).max() > 5


def test_a_class_and_truncation_reach_the_recipe_and_a_class_is_named_as_its_folder(runs, tmp_path, capsys):
    """Folders 0 to 11 are numbered in the order of texts."""
    means = {}
    for given, number in (("2", "4: 2"), ("seven", "9: seven"), ("7", "7: 5")):
        means[given] = draw(runs / "named", tmp_path / given, "--samples", 8, "--class", given).astype(float).mean()
        assert f"; class {number}\n" in capsys.readouterr().out
    np.testing.assert_allclose(means["seven"] - means["2"], 0.5 * 127.5, atol=1)
    np.testing.assert_allclose(means["7"] - means["2"], 0.3 * 127.5, atol=1)
    words = ("--samples", 8, "--class", "seven", "--truncation", 0)
    np.testing.assert_allclose(
        means["seven"] - draw(runs / "named", tmp_path / "mean", *words).mean(), 0.9 * 127.5, atol=1
    )
    assert sample([str(runs / "named"), "--out", str(tmp_path / "a.png"), "--class", "eight"]) == 2
    assert "10 classes; expected a smaller number, or the name of one" in capsys.readouterr().err


def test_a_recipe_that_shows_data_starts_from_images_that_the_seed_chooses(runs, tmp_path):
    images = draw(runs / "completion", tmp_path / "own", "--samples", 7, "--seed", 2, "--batch-size", 3)
    assert images.shape == (7, 32, 3 * 32)
    chosen = sample_indices(2, 0, 7, 6)
    np.testing.assert_array_equal(images[:, 0, -1], 40 * chosen)
    digits = draw(runs / "completion", tmp_path / "digits", "--samples", 40, "--data", "digits", "--batch-size", 40)
    source = open_source(Config(data="digits", image_size=32, channels=1))
    originals = source.fetch_batch(sample_indices(0, 0, 40, len(source)))["images"][..., 0]
    np.testing.assert_array_equal(digits[:, :, 64:], originals)  # the recipe shows 32 at a time


@pytest.fixture
def folder(tmp_path, monkeypatch, runs):
    """The working folder, with runs that cannot be used."""
    monkeypatch.chdir(tmp_path)
    for name in ("dcgan", "conditional", "completion"):
        (tmp_path / name).symlink_to(runs / name)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "a.txt").write_text("")
    (tmp_path / "there.png").write_bytes(b"")
    strange = shutil.copy(checkpoint(runs / "dcgan", 2), tmp_path / "strange.safetensors")
    rewrite(strange, lambda _, manifest: manifest["config"].update(recipe="not_there:GAN"))
    shutil.copytree(runs / "dcgan", tmp_path / "broken")
    name = next(name for name in tensors(runs / "dcgan", 2) if name.startswith("ema/"))
    rewrite(checkpoint(tmp_path / "broken", 2), lambda values, _: np.add(values[name], 1, out=values[name]))
    return tmp_path


@pytest.mark.parametrize("arguments", refused("sample"))
def test_a_mistake_is_one_line_and_nothing_is_written(folder, messages, arguments):
    out = [] if "--out" in arguments else ["--out", "new/grid.png"]
    messages.refuses("sample", sample, arguments, *out, folder=folder)


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
def fields(trained_folder, monkeypatch):
    monkeypatch.chdir(trained_folder)
    return trained_folder


@pytest.mark.long
def test_each_input_is_used_for_all_its_members_in_a_row(fields):
    """Each sample is what the generator makes of the input of its index and of the noise of its number."""
    flags = ["run", "--samples", "7", "--members", "3", "--seed", "5", "--batch-size", "4", "--overwrite"]
    assert sample([*flags, "--out", "s.npz"]) == 0
    drawn, data = np.load("s.npz"), np.load("p.npz")
    index = drawn["index"]
    assert index.dtype == np.int64 and index.shape == (7,)
    assert (index[:3] == index[0]).all() and (index[3:6] == index[3]).all() and len({index[0], index[3], index[6]}) == 3
    run = load_trained(fields / "run")
    values, nets = run.recipe.data.values, run.nets("averaged")
    random = SampleRandom(5, tf.range(7, dtype=tf.int64)).scoped("draw")
    inputs = values.inputs.forward(data["inputs"][index])
    latents = random.normal("noise", (3, 5, 3))
    made = nets.generator([tf.constant(inputs), latents, tf.constant(data["ground"][None, ..., None])])
    np.testing.assert_allclose(drawn["samples"], values.images.inverse(made.numpy()), rtol=1e-4, atol=1e-5)
    assert np.abs(drawn["samples"][0] - drawn["samples"][1]).max() > 1e-3


def test_the_index_counts_in_the_data_that_are_named_where_samples_start_from_data(fields):
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


NAMES = ("t2m", "u10", "v10")
VALUES = SampleValues(
    parse("t2m=range:200,300;u10=none;v10=none", "-", NAMES, ("K", "m/s", "m/s")),
    conditions=parse("energy=range:0,100;theta=none", "-", ("energy", "theta"), ("GeV", "")),
)
SPEC = DataSpec((4, 5, 3), 9, conditions=("energy", "theta"), values=VALUES)
SAMPLES = np.random.default_rng(0).uniform(0, 900, (3, 4, 5, 3)).astype(np.float32)
INPUTS = [{"conditions": np.array([number / 2, 7], np.float32), "numbers": np.int64(5 - number)} for number in range(3)]


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_numbers_conditions_and_units_are_those_of_the_data_and_are_read_as_such(tmp_path, suffix):
    path = tmp_path / "new" / f"a.{suffix}"
    write_samples(path, {"images": SAMPLES}, SPEC, INPUTS, of_data=True)
    with np.load(path) if suffix == "npz" else h5py.File(path) as file:
        of_names = {f"{name}_{kind}" for name in file for kind in ("units", "channels")}
        assert {*file} - of_names == {"samples", "energy", "theta", "index"}
        assert file["index"][...].tolist() == [5, 4, 3]
    settings = ArrayConfig(values="none", conditions=("energy", "theta"), condition_values="none")
    source = open_source(Config(data=f"{path}:samples", arrays=settings))
    np.testing.assert_array_equal(source.fetch_batch(np.arange(3))["images"], SAMPLES)
    np.testing.assert_allclose(source.conditions, [[50, 7], [75, 7], [100, 7]])
    assert (source.values.images.channels, source.values.images.units) == (NAMES, ("K", "m/s", "m/s"))
    assert source.values.conditions.units == ("GeV", "")


def by_hand(saved, batches):
    """Mean and variance of the first layer's outputs, averaged over batches of 4 latents."""
    kernel, bias = (saved[f"ema/generator/generator/dense/{name}"].astype(float) for name in ("kernel", "bias"))
    means, variances = [], []
    for number in range(batches):
        numbers = -1 - tf.range(4 * number, 4 * number + 4, dtype=tf.int64)
        latents = SampleRandom(5, numbers).scoped("draw").normal("latents", (8,)).numpy().astype(float)
        outputs = latents @ kernel + bias
        means.append(outputs.mean(axis=0))
        variances.append(outputs.var(axis=0))
    return np.mean(means, axis=0), np.mean(variances, axis=0)


def test_the_statistics_are_the_means_over_the_batches_of_the_weights_in_use(tmp_path):
    """Whatever the moving statistics were. All else keeps its bits, those of the discriminator too."""
    untrained(tmp_path, "tiny:Tiny", TinyOptions(norm="batch"))
    trained = load_trained(tmp_path)
    tensors = trained.state.tensors()
    for name, variable in tensors.items():
        if "moving" in name:
            variable.assign(variable + 50.0)
    before = {name: variable.numpy() for name, variable in tensors.items()}
    assert set_standing_statistics(trained, "averaged", batches=3, batch_size=4, seed=5) == ["generator"]
    after = {name: variable.numpy() for name, variable in tensors.items()}
    names = [f"ema/generator/generator/batch_normalization/moving_{name}" for name in ("mean", "variance")]
    assert {name for name in after if before[name].tobytes() != after[name].tobytes()} == set(names)
    for name, expected in zip(names, by_hand(before, 3), strict=True):
        np.testing.assert_allclose(after[name], expected, rtol=2e-5, atol=1e-6)
    momenta = {layer.momentum for layer in trained.state.networks["generator"].layers if hasattr(layer, "momentum")}
    assert momenta == {0.99}
