"""What samples start from: other data than a run's, samples of another program, and conditions that a user gives."""

import dataclasses
import types
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from hvdgan.data import open_source
from hvdgan.errors import UserError
from hvdgan.inference import inputs
from hvdgan.inference.inputs import given_conditions, open_samples
from hvdgan.inference.trained import TrainedNetworks
from hvdgan.recipe import DataSpec
from hvdgan.recipe.batch import unpack
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig
from hvdgan.training.build import spec_of
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import parse

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained_on(data, paired=False, **arrays):
    """The settings of a run, and the facts about its data."""
    config = Config(data=data, arrays=ArrayConfig(**arrays))
    return config, spec_of(open_source(config, paired=paired))


def pictures(folder, classes):
    """Four grey pictures of each class in a folder."""
    for name in classes:
        Path(folder, name).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(RNG.integers(0, 256, (8, 8), np.uint8)).save(Path(folder, name, f"{number}.png"))


def open_data(config, spec, data, **others):
    recipe = types.SimpleNamespace(data=spec)
    return inputs.open_data(TrainedNetworks(Path("run"), 0, config, recipe, None, {"code": {}}), data, **others)


def refused(opening, run, data):
    with pytest.raises(UserError) as caught:
        opening(*run, data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_others_are_opened_as_the_run_recorded_its_own_or_as_a_flag_says():
    """Axes, inputs and conditions; integers and numbers beyond those of the data need no map."""
    shapes = {"energy": (5,), "x": (5, 2, 6, 4), "y": (5, 1, 3, 2)}
    for name, scale in (("mine.npz", 1), ("others.npz", 900)):
        kind = "f4" if scale == 1 else "i4"
        np.savez(name, **{key: (scale * RNG.random(shape)).astype(kind) for key, shape in shapes.items()})
    flags = {"axes": "CHW", "inputs": "y", "input_axes": "CHW", "conditions": ("energy",)}
    maps = dict.fromkeys(("values", "input_values"), "none")
    run = trained_on("mine.npz:x", paired=True, **flags, **maps)
    source, arrays = open_data(*run, "others.npz:x"), np.load("others.npz")
    assert (source.layout.shape, source.layout.input_shape) == ((6, 4, 2), (3, 2, 1))
    np.testing.assert_array_equal(source.conditions[:, 0], arrays["energy"])
    seen = source.mapped(run[1].values).fetch_batch(np.arange(5))
    np.testing.assert_array_equal(seen["images"], np.moveaxis(arrays["x"], 1, -1))
    np.testing.assert_array_equal(seen["inputs"], np.moveaxis(arrays["y"], 1, -1))
    np.savez("last.npz", **{**arrays, "x": np.moveaxis(arrays["x"], 1, -1)})
    said = refused(open_data, run, "last.npz:x")
    assert "shapes of a sample and its input: ((4, 2, 6), (3, 2, 1)), and ((6, 4, 2), (3, 2, 1)) in training" in said
    assert said.endswith("give the same, or the axes of these data with --axes")
    assert open_data(*run, "last.npz:x", axes="HWC").layout == source.layout


def test_what_the_run_was_not_trained_on_is_refused():
    """Channels of another order; floats within [0, 1], which would be mapped as if they were pixels; other classes."""
    for name, channels in (("mine", ["u", "v"]), ("others", ["v", "u"])):
        with h5py.File(f"{name}.h5", "w") as file:
            file["images"] = RNG.random((5, 4, 6, 2), np.float32)
            file["images"].attrs["channels"] = channels
    run = trained_on("mine.h5:images", values="none")
    said = "--data others.h5:images: channels of the images: ('v', 'u'), and ('u', 'v') in"
    assert said in refused(open_data, run, "others.h5:images")
    np.save("floats.npy", RNG.random((9, 8, 8, 1)))
    np.save("pixels.npy", RNG.integers(0, 256, (9, 8, 8, 1), np.uint8))
    of_pictures, of_arrays = trained_on("pixels.npy"), trained_on("floats.npy")
    for opening in (open_data, open_samples):
        said = refused(opening, of_pictures, "floats.npy")
        assert said.endswith("floats.npy: arrays, and the run was trained on 8-bit pictures; give such data")
        assert "8-bit pictures, and the run was trained on arrays" in refused(opening, of_arrays, "pixels.npy")
    for folder, classes in (("mine", "abc"), ("same", "abc"), ("others", "abx"), ("unlabelled", [""])):
        pictures(folder, classes)
    run = trained_on("mine")
    assert open_data(*run, "same").labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert "which differ in c, x; give" in refused(open_data, run, "others")
    assert "10 classes, and 3 in training, which differ in their number or order" in refused(open_data, run, "digits")
    assert open_data(*run, "unlabelled").labels is None


def test_samples_have_the_units_of_the_data_and_the_shape_that_networks_make():
    np.save("fields.npy", RNG.random((9, 8, 9, 2)))
    run = trained_on("fields.npy", values="range:0,10", crop=(4, 5))
    made = RNG.uniform(0, 12, (6, 4, 5, 2))
    np.save("made.npy", made)
    source, spec = open_samples(*run, "made.npy")
    seen = unpack(source.fetch_batch(np.arange(len(source))), spec).images.numpy()
    np.testing.assert_allclose(seen, made / 5 - 1, atol=1e-6)
    said = refused(open_samples, run, "fields.npy")
    assert said.startswith("--images fields.npy: shapes of a sample and its input: ((8, 9, 2), None), and ((4, 5, 2)")


NAMES = ("energy", "theta")


def spec_with(energy):
    maps = parse(f"energy={energy};theta=none", "--condition-values", NAMES)
    return DataSpec((4, 4, 1), 9, conditions=NAMES, values=SampleValues(parse("none", "-", ("0",)), conditions=maps))


def test_conditions_are_given_in_the_units_of_the_data(capsys):
    """One line warns of those outside of the declared range."""
    spec = spec_with("range:0,100")
    np.save("c.npy", np.array([[0, 1], [100, 2]]))
    Path("c.csv").write_text("other,theta,energy\n9,1,0\n9,2,100\n\n")
    for name in ("c.npy", "c.csv"):
        assert given_conditions(None, Path(name), spec).tolist() == [[-1, 1], [1, 2]]
    numbers = given_conditions(" theta = 1.5, energy=50", None, spec)
    assert numbers.dtype == np.float32 and numbers.tolist() == [[0.0, 1.5]]
    assert given_conditions(None, None, spec) is None and not capsys.readouterr().err
    with pytest.raises(UserError, match="--condition energy=1: the run has no conditions; leave it out"):
        given_conditions("energy=1", None, dataclasses.replace(spec, conditions=()))
    given_conditions("energy=5000,theta=700", None, spec)
    told = "hvdgan: warning: --condition energy=5000,theta=700: numbers of energy lie outside of the declared"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(told)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("energy=50", "--condition energy=50: expected energy=NUMBER,theta=NUMBER"),
        ("energy=-500,theta=1", "energy is -500, which its map log1p turns into nan; expected"),
        (Path("c.npy"), "--conditions c.npy: shape (3, 3); expected (N, 2) numbers for energy, theta"),
    ],
)
def test_conditions_that_do_not_fit_are_refused(given, message):
    np.save("c.npy", np.zeros((3, 3)))
    words = (None, given) if isinstance(given, Path) else (given, None)
    with pytest.raises(UserError) as caught:
        given_conditions(*words, spec_with("log1p"))
    assert message in str(caught.value) and "\n" not in str(caught.value)
