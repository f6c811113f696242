"""Files of samples: numbers in the units of the data, with their conditions and units."""

import h5py
import numpy as np
import pytest

from hvdgan.cli.errors import UserError
from hvdgan.recipe import DataSpec
from hvdgan.training.inference import sample_files
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import parse

VALUES = SampleValues(
    parse("log1p", "--values", ("0",), ("GeV",)),
    conditions=parse("energy=range:0,100;theta=none", "-", ("energy", "theta"), ("GeV", "")),
)
SPEC = DataSpec((4, 5, 1), 9, conditions=("energy", "theta"), values=VALUES)
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


def test_an_npy_holds_the_samples_alone(tmp_path):
    sample_files.write(tmp_path / "a.npy", SAMPLES, SPEC, INPUTS)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), SAMPLES)


def test_samples_without_conditions(tmp_path):
    spec = DataSpec((4, 5, 1), 9, values=SampleValues(VALUES.images))
    sample_files.write(tmp_path / "a.npz", SAMPLES, spec, [{} for _ in SAMPLES])
    assert list(np.load(tmp_path / "a.npz")) == ["samples"]


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
