"""Samples of several arrays, through all that draws, compares, shows and exports them.

Molecules have two arrays of the data, and pictures a mask that the data do not have."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import hvdgan
from hvdgan.evaluate import main as evaluate
from hvdgan.export import main as export
from hvdgan.inference.trained import load_trained
from hvdgan.recipe import DataSpec
from hvdgan.recipe.batch import Batch
from hvdgan.recipe.outputs import sampled
from hvdgan.recipe.recipe_errors import Mistake
from hvdgan.recipe.sampling import SampleRandom
from hvdgan.sample import main as sample
from hvdgan.train import main as train
from launching import train as launch
from molecules import FLAGS, Masked, write_molecules
from saved import measured, records, state

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
        words = "--recipe molecules:Masked --image-size 8 --global-batch-size 4 --steps 1 --run-dir masked".split()
        assert train(words) == 0
    return folder


@pytest.fixture(autouse=True)
def there(folder, monkeypatch):
    monkeypatch.chdir(folder)


def generated(run, seed, count):
    """What the networks of a run make of the latents of a seed, by hand."""
    latents = SampleRandom(seed, tf.range(count, dtype=tf.int64)).scoped("draw").normal("latents", (4,))
    return [each.numpy() for each in load_trained(run).nets("averaged").generator(latents)]


def test_two_ranks_and_a_resumed_run_equal_one_and_its_features_see_both_arrays(folder):
    launch(folder, *FLAGS, *EVALUATED, "--run-dir", "two", "--max-steps", "2", ranks=2)
    assert train([*FLAGS, *EVALUATED, "--run-dir", "two"]) == 0
    for mine, theirs in zip(measured(folder / "molecules"), measured(folder / "two"), strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            if isinstance(value, float):
                assert theirs[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    assert train([*FLAGS, *EVALUATED, "--run-dir", "parts", "--max-steps", "2"]) == 0
    assert train([*FLAGS, *EVALUATED, "--run-dir", "parts"]) == 0
    assert state(folder / "molecules", 4) == state(folder / "parts", 4)
    assert all("eval/frechet" in each for each in records(folder / "molecules") if each["step"] in (2, 4))


def test_each_array_is_drawn_by_its_name_and_in_the_units_of_the_data(folder):
    images, atoms = generated("molecules", 3, 5)
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


def test_an_export_serves_each_array(folder):
    assert export(["molecules", "--out", "served"]) == 0
    served = tf.saved_model.load("served")
    made = served.serve(**served.draw(numbers=tf.range(5, dtype=tf.int64)))
    for name, one in zip(("images", "features"), generated("molecules", 0, 5), strict=True):
        np.testing.assert_allclose(made[name], one, atol=1e-6)


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
    of_run, of_file = map(__import__("json").loads, capsys.readouterr().out.splitlines()[-2:])
    assert of_file["eval/frechet"] == pytest.approx(of_run["eval/frechet"], rel=1e-4)
    with np.load("as_made.npz") as made:
        np.savez("bare.npz", images=made["images"])
    assert evaluate("molecules --samples 24 --eval-features recipe --images bare.npz:images".split()) == 2
    assert "features" in capsys.readouterr().err


def test_features_of_an_array_that_the_samples_lack_are_refused_by_name(capsys):
    words = [*FLAGS, *EVALUATED, "--recipe", "molecules:Forgetful", "--run-dir", "forgetful", "--dry-run"]
    assert train(words) == 2
    assert "without arrays['features'] for these samples" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ({"mask": tf.zeros((3, 8, 8, 1))}, "mask as float32 (3, 8, 8, 1)"),
        ({"map": tf.zeros((4, 8, 8, 2))}, "(N, 8, 8, 3)"),
        ({"index": tf.zeros((4,))}, "'index'"),
        ({"mask": tf.zeros(())}, "mask as float32 ()"),
        ({"images": tf.zeros((4, 8, 8, 2))}, "(4, 8, 8, 2)"),
        ({"images": None}, "None"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(others, named):
    class Wrong(Masked):
        def sample(self, nets, batch):
            return {"images": tf.zeros((4, 8, 8, 1)), **others}

    recipe = Wrong(Masked.Options(), DataSpec((8, 8, 1), 10, array_shapes={"map": (8, 8, 3)}))
    batch = Batch(tf.zeros((4, 8, 8, 1)), None, SampleRandom(0, tf.range(4, dtype=tf.int64)), {})
    with pytest.raises(Mistake, match=r"sample\(\)") as refused:
        sampled(recipe, None, batch)
    assert named in str(refused.value)
