"""Samples of several arrays, through all that draws, compares, shows and exports them.

Molecules have two arrays of the data, and pictures a mask that the data do not have."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import hvdgan
from hvdgan.evaluate import main as evaluate
from hvdgan.export import main as export
from hvdgan.inference.trained import load_trained
from hvdgan.recipe.sampling import SampleRandom
from hvdgan.sample import main as sample
from hvdgan.train import main as train
from launching import train as launch
from molecules import FLAGS, write_molecules
from saved import measured, state

pytestmark = pytest.mark.slow
EVALUATED = "--eval-samples 24 --eval-every 2 --eval-features recipe".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of molecules, evaluated after two and four steps, and one of pictures with a mask."""
    folder = tmp_path_factory.mktemp("several")
    write_molecules(folder / "m.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train([*FLAGS, *EVALUATED, "--run-dir", "molecules"]) == 0
        words = "--recipe molecules:Masked --image-size 8 --global-batch-size 4 --steps 1 --report never".split()
        assert train([*words, "--run-dir", "masked"]) == 0
    return folder


@pytest.fixture(autouse=True)
def there(folder, monkeypatch):
    monkeypatch.chdir(folder)


def made_by_hand(seed, count):
    """What the network makes of the latents of a seed: bonds, and kinds of atoms in the units of the data, 0 to 2."""
    latents = SampleRandom(seed, tf.range(count, dtype=tf.int64)).scoped("draw").normal("latents", (4,))
    images, atoms = load_trained(Path("molecules")).nets("averaged").generator(latents)
    return images.numpy(), atoms.numpy() + 1


@pytest.mark.long
def test_two_ranks_and_a_resumed_run_equal_one_and_its_features_see_both_arrays(folder):
    launch(folder, *FLAGS, *EVALUATED, "--run-dir", "two", "--max-steps", "2", ranks=2)
    assert train([*FLAGS, *EVALUATED, "--run-dir", "two"]) == 0
    for mine, theirs in zip(measured(folder / "molecules"), measured(folder / "two"), strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            if isinstance(value, float):
                assert theirs[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    assert train([*FLAGS, "--run-dir", "parts", "--max-steps", "2"]) == 0
    assert train([*FLAGS, "--run-dir", "parts"]) == 0
    assert state(folder / "molecules", 4) == state(folder / "parts", 4)
    assert sum("eval/frechet" in each for each in measured(folder / "molecules")) == 2


def test_each_array_is_drawn_by_its_name_and_in_the_units_of_the_data(folder):
    images, atoms = made_by_hand(3, 5)
    words = ["molecules", "--seed", "3", "--samples", "5"]
    assert sample([*words, "--out", "drawn.npz"]) == 0
    drawn = np.load("drawn.npz")
    assert set(drawn) == {"images", "features"}
    np.testing.assert_allclose(drawn["images"], images, atol=1e-6)
    np.testing.assert_allclose(drawn["features"], atoms, atol=1e-6)
    assert sample([*words, "--out", "single", "--separate"]) == 0
    np.testing.assert_array_equal(np.load("single/000004-features.npy"), drawn["features"][4])
    np.testing.assert_array_equal(np.load("single/000004.npy"), drawn["images"][4])
    assert sample([*words, "--out", "drawn.npy"]) == 2
    made = hvdgan.TrainedRun(folder / "molecules", True, 4, {}).sample(5, seed=3)
    np.testing.assert_array_equal(made["features"], drawn["features"])


def test_an_export_serves_each_array_and_a_network_returns_it_in_the_units_of_the_data(folder):
    assert export(["molecules", "--out", "served"]) == 0
    served = tf.saved_model.load("served")
    draws = served.draw(numbers=tf.range(5, dtype=tf.int64))
    made = served.serve(**draws)
    assert export("molecules --only generator --out g.keras".split()) == 0
    both = keras.models.load_model("g.keras")(draws["latents"])
    for name, other, one in zip(("images", "features"), both, made_by_hand(0, 5), strict=True):
        np.testing.assert_allclose(made[name], one, atol=1e-6)
        np.testing.assert_allclose(other, one, atol=1e-6)


def test_samples_may_start_from_an_array_of_the_data_which_an_export_takes_by_its_name(folder):
    """The recipe reverses the atoms; the networks are those of the run."""
    words = ["molecules", "--recipe", "molecules:Reversing"]
    atoms = np.load("m.npz")["features"]
    assert sample([*words, "--samples", "5", "--out", "reversed.npz"]) == 0
    with np.load("reversed.npz") as drawn:
        np.testing.assert_allclose(drawn["features"], atoms[drawn["index"]][:, ::-1], atol=1e-6)
    assert export([*words, "--out", "reversing"]) == 0
    served = tf.saved_model.load("reversing")
    draws = served.draw(numbers=tf.range(5, dtype=tf.int64))
    made = served.serve(features=tf.constant(atoms[:5]), **draws)
    np.testing.assert_allclose(made["features"], atoms[:5, ::-1], atol=1e-6)


def test_arrays_like_pictures_stand_beside_them(folder):
    """The mask is half as large, and every second pixel of the picture."""
    assert sample("masked --out grid.png --samples 1".split()) == 0
    grid = np.asarray(Image.open("grid.png")).astype(float)
    picture, mask = grid[:, :8], grid[:, 8:]
    assert mask.shape == (8, 8) and (mask.min(), mask.max()) == (0, 255)
    scaled = np.repeat(np.repeat(picture[::2, ::2], 2, 0), 2, 1)
    scaled = (scaled - scaled.min()) / (scaled.max() - scaled.min()) * 255
    np.testing.assert_allclose(mask, scaled, atol=2)
    assert Image.open("masked/samples/step-00000001.png").size[0] > Image.open("masked/samples/real.png").size[0]


def test_samples_of_a_file_are_compared_by_both_arrays(folder, capsys):
    assert sample("molecules --out as_made.npz --samples 24".split()) == 0
    words = "molecules --samples 24 --eval-features recipe --seed 0".split()
    assert evaluate([*words, "--json"]) == 0
    assert evaluate("molecules --samples 24 --eval-features recipe --images as_made.npz:images --json".split()) == 0
    of_run, of_file = map(json.loads, capsys.readouterr().out.splitlines()[-2:])
    assert of_file["eval/frechet"] == pytest.approx(of_run["eval/frechet"], rel=1e-4)
    with np.load("as_made.npz") as made:
        np.savez("bare.npz", images=made["images"])
    assert evaluate("molecules --samples 24 --eval-features recipe --images bare.npz:images".split()) == 2
    assert "features" in capsys.readouterr().err


def test_features_of_an_array_that_the_samples_lack_are_refused_by_name(capsys):
    words = [*EVALUATED, "--recipe", "molecules:Forgetful", "--run-dir", "forgetful", "--dry-run"]
    assert train([*FLAGS[2:], *words]) == 2
    assert "without arrays['features'] for these samples" in capsys.readouterr().err
