"""The command hvdgan.sample. Modules: recipe.drawing, inference.trained"""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from safetensors.numpy import load_file, save_file

from hvdgan import sample
from hvdgan.cli.config import Config
from hvdgan.data import open_source
from hvdgan.data.order import sample_indices
from hvdgan.recipe import DataSpec
from hvdgan.recipe.drawing import SampleRandom
from hvdgan.recipe.loading import load_recipe
from hvdgan.recipe.showing import to_uint8
from hvdgan.recipes.dcgan import DCGAN, DCGANOptions
from hvdgan.values import sample_values
from messages import refused
from saved import untrained


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
    return folder


def draw(run, out, *arguments):
    """The pictures of a call that must succeed, uint8."""
    assert sample.main([str(run), "--separate", "--out", str(out), *map(str, arguments)]) == 0
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
    checkpoint = runs / "dcgan" / "checkpoints" / "step-00000002"
    four = "--samples", 4, "--seed", 7, "--batch-size", 4
    averaged = draw(checkpoint, tmp_path / "averaged", *four)
    trained = draw(checkpoint, tmp_path / "trained", *four, "--weights", "trained")
    saved = load_file(checkpoint / "state.safetensors")
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


def test_a_class_and_truncation_reach_the_recipe(runs, tmp_path):
    means = [
        draw(runs / "conditional", tmp_path / "-".join(words), "--samples", 8, *words).astype(float).mean(axis=(1, 2))
        for words in (["--class", "2"], ["--class", "9"], ["--class", "9", "--truncation", "0"])
    ]
    np.testing.assert_allclose(means[1] - means[0], 0.7 * 127.5, atol=1)
    np.testing.assert_allclose(means[1] - means[2], 0.9 * 127.5, atol=1)


def test_a_recipe_that_shows_data_starts_from_images_that_the_seed_chooses(runs, tmp_path):
    images = draw(runs / "completion", tmp_path / "own", "--samples", 7, "--seed", 2, "--batch-size", 3)
    assert images.shape == (7, 32, 3 * 32)
    chosen = sample_indices(2, 0, 7, 6)
    np.testing.assert_array_equal(images[:, 0, -1], 40 * chosen)
    digits = draw(runs / "completion", tmp_path / "digits", "--samples", 40, "--data", "digits", "--batch-size", 40)
    source = open_source(Config(data="digits", image_size=32, channels=1))
    originals = source.fetch_batch(sample_indices(0, 0, 40, len(source)))[..., 0]
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
    shutil.copytree(runs / "dcgan" / "checkpoints" / "step-00000002", tmp_path / "strange")
    path = tmp_path / "strange" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["config"]["recipe"] = "not_there:GAN"
    path.write_text(json.dumps(manifest))
    shutil.copytree(runs / "dcgan", tmp_path / "broken")
    state = tmp_path / "broken" / "checkpoints" / "step-00000002" / "state.safetensors"
    values = load_file(state)
    name = next(name for name in values if name.startswith("ema/"))
    save_file({**values, name: values[name] + 1}, state)
    return tmp_path


@pytest.mark.parametrize("arguments", refused("sample"))
def test_a_mistake_is_one_line_and_nothing_is_written(folder, messages, arguments):
    out = [] if "--out" in arguments else ["--out", "new/grid.png"]
    messages.refuses("sample", sample.main, arguments, *out, folder=folder)
