"""Files of samples: numbers in the units of the data, with their conditions and units."""

import dataclasses

import h5py
import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import UserError
from hvdgan.data import open_source
from hvdgan.inference import sample_files
from hvdgan.inference.inputs import open_samples
from hvdgan.recipe import DataSpec
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import parse

VALUES = SampleValues(
    parse("log1p", "--values", ("0",), ("GeV",)),
    conditions=parse("energy=range:0,100;theta=none", "-", ("energy", "theta"), ("GeV", "")),
)
SPEC = DataSpec((4, 5, 1), 9, conditions=("energy", "theta"), values=VALUES)
ENERGY = parse("none", "-", ("energy",), ("GeV",))
SAMPLES = np.random.default_rng(0).uniform(0, 900, (3, 4, 5, 1)).astype(np.float32)
INPUTS = [{"conditions": np.array([number / 2, 7], np.float32), "numbers": np.int64(5 - number)} for number in range(3)]


def read(path):
    if path.suffix == ".npz":
        return dict(np.load(path)), {}
    with h5py.File(path) as file:
        return {name: file[name][...] for name in file}, {name: dict(file[name].attrs) for name in file}


@pytest.mark.parametrize("suffix", [".npz", ".h5", ".hdf5"])
def test_numbers_and_conditions_have_the_units_of_the_data(tmp_path, suffix):
    path = tmp_path / "new" / f"a{suffix}"
    sample_files.write(path, SAMPLES, SPEC, INPUTS, of_data=True)
    arrays, attributes = read(path)
    np.testing.assert_array_equal(arrays["samples"], SAMPLES)
    np.testing.assert_allclose(arrays["energy"], [50, 75, 100])
    assert arrays["theta"].tolist() == [7, 7, 7] and arrays["index"].tolist() == [5, 4, 3]
    if attributes:
        assert (attributes["samples"], attributes["energy"]) == ({"units": "GeV"}, {"units": "GeV"})
        assert attributes["theta"] == {}
    else:
        assert {name: arrays[name].tolist() for name in arrays if name.endswith(("units", "channels"))} == {
            "samples_units": ["GeV"],
            "energy_units": ["GeV"],
        }


def test_an_npy_holds_the_samples_alone(tmp_path):
    sample_files.write(tmp_path / "a.npy", SAMPLES, SPEC, INPUTS)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), SAMPLES)


def test_samples_without_conditions(tmp_path):
    spec = DataSpec((4, 5, 1), 9, values=SampleValues(VALUES.images))
    sample_files.write(tmp_path / "a.npz", SAMPLES, spec, [{} for _ in SAMPLES])
    assert sorted(np.load(tmp_path / "a.npz")) == ["samples", "samples_units"]


NAMED = SampleValues(parse("t2m=range:200,300;u10=none;v10=none", "-", ("t2m", "u10", "v10"), ("K", "m/s", "m/s")))


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_the_file_is_read_as_data_with_its_units_and_names(tmp_path, suffix):
    """Each channel has its own unit; the texts are taken for no samples, also where --data names no array."""
    path, samples = tmp_path / f"a.{suffix}", SAMPLES.reshape(4, 1, 5, 3)
    sample_files.write(path, samples, DataSpec((1, 5, 3), 9, values=NAMED), [{} for _ in samples])
    source = open_source(Config(data=str(path), arrays=ArrayConfig(values="none")))
    assert len(source) == 4
    np.testing.assert_array_equal(source.fetch_batch(np.arange(4)), samples)
    images = source.values.images
    assert (images.channels, images.units) == (("t2m", "u10", "v10"), ("K", "m/s", "m/s"))


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_the_file_is_read_as_samples_of_another_program(tmp_path, suffix):
    """By its run, whose map names the channels and whose conditions have a map of their own."""
    path, samples = tmp_path / f"a.{suffix}", SAMPLES.reshape(4, 1, 5, 3)
    spec = DataSpec((1, 5, 3), 9, conditions=("energy",), values=dataclasses.replace(NAMED, conditions=ENERGY))
    inputs = [{"conditions": np.array([number], np.float32)} for number in range(4)]
    sample_files.write(path, samples, spec, inputs)
    maps = ArrayConfig(values="t2m=range:200,300;u10=none;v10=none", conditions=("energy",), condition_values="none")
    source, _ = open_samples(Config(arrays=maps), spec, f"{path}:samples")
    np.testing.assert_allclose(source.fetch_batch(np.arange(4)), NAMED.images.forward(samples), rtol=1e-6)
    read = open_source(Config(data=f"{path}:samples", arrays=maps))
    assert read.conditions[:, 0].tolist() == [0, 1, 2, 3] and read.values.conditions.units == ("GeV",)


@pytest.mark.parametrize(("axes", "shape"), [("DHW", (2, 3, 5, 1)), ("CHW", (3, 5, 2)), ("cdhw", (2, 3, 5, 2))])
def test_samples_of_a_run_whose_data_have_other_axes_are_read(tmp_path, axes, shape):
    """hvdgan.sample writes the channels last; another program may write them like the data."""
    samples = np.random.default_rng(0).random((6, *shape)).astype(np.float32)
    values = SampleValues(parse("none", "-", tuple(map(str, range(shape[-1]))), ("",) * shape[-1]))
    spec, config = DataSpec(shape, 9, values=values), Config(arrays=ArrayConfig(values="none", axes=axes))
    sample_files.write(tmp_path / "a.h5", samples, spec, [{} for _ in samples])
    np.save(tmp_path / "b.npy", samples[..., 0] if axes == "DHW" else np.moveaxis(samples, -1, 1))
    for path in (f"{tmp_path / 'a.h5'}:samples", str(tmp_path / "b.npy")):
        source, _ = open_samples(config, spec, path)
        np.testing.assert_array_equal(source.fetch_batch(np.arange(6)), samples)
    np.save(tmp_path / "c.npy", samples[:, :1])
    with pytest.raises(UserError, match=f"axes {axes}|samples of shape"):
        open_samples(config, spec, str(tmp_path / "c.npy"))


def test_a_png_is_a_picture_with_a_scale(tmp_path):
    sample_files.write(tmp_path / "a.png", SAMPLES, SPEC, INPUTS)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.h5", "a.png"])
def test_an_existing_file_is_kept_unless_asked(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        sample_files.check(tmp_path / name, separate=False, overwrite=False)
    sample_files.check(tmp_path / name, separate=False, overwrite=True)
    sample_files.write(tmp_path / name, SAMPLES, SPEC, INPUTS)
    assert (tmp_path / name).read_bytes() != b"mine" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["a", "a.jpg", "a.csv"])
def test_other_endings_are_refused(tmp_path, name):
    with pytest.raises(
        UserError, match=r"expected a name that ends in \.png for a picture, or in \.npy, \.npz, \.h5, "
    ):
        sample_files.check(tmp_path / name, separate=False, overwrite=False)
