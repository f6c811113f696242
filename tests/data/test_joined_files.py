"""Several files as one array: those in use stay open, all others are closed."""

import gc
import os

import h5py
import numpy as np
import pytest
import xarray

from arrays_on_disk import arrays
from hvdgan.cli.errors import UserError

FIELDS = np.random.default_rng(0).standard_normal((24, 3, 4)).astype(np.float32)


def parts(folder, kind):
    """Files of two samples each."""
    for number in range(12):
        inside, path = slice(2 * number, 2 * number + 2), folder / f"{number:02}.{kind}"
        fields = {"t2m": (("time", "y", "x"), FIELDS[inside]), "hour": ("time", np.arange(24)[inside])}
        xarray.Dataset(fields).to_netcdf(path, engine="h5netcdf")
    return f"{folder}/*.{kind}"


def beside(folder, *counts, **changed):
    """HDF5 files of samples with energies, inputs and labels; `changed` are the numbers of these in each file."""
    folder.mkdir()
    for number, count in enumerate(counts):
        numbers = {"energy": count, "inputs": count, "labels": count}
        numbers |= {name: each[number] for name, each in changed.items()}
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["ECAL"] = FIELDS[:count]
            file["energy"], file["labels"] = np.arange(numbers["energy"]), np.zeros(numbers["labels"], np.int32)
            file["inputs"] = FIELDS[: numbers["inputs"]]
    return f"{folder}/*.h5:ECAL"


@pytest.mark.parametrize("name", ["energy", "inputs", "labels"])
def test_what_lies_beside_the_samples_has_as_many_entries_in_each_file(tmp_path, name):
    """The sums over all files are equal here, so that the entries would be shifted by one sample without a word."""
    settings = {"conditions": ("energy",), "input_values": "none", "paired": True}
    source = arrays(beside(tmp_path / "equal", 4, 3, 2), **settings)
    assert len(source) == 9
    with pytest.raises(UserError, match=rf"{name} has 2 entries in .*/1\.h5, which has 3 samples; expected") as caught:
        arrays(beside(tmp_path / "shifted", 4, 3, 2, **{name: (4, 2, 3)}), **settings)
    assert "\n" not in str(caught.value)


def test_files_with_other_channels_or_dimensions_are_named(tmp_path):
    for number, names in enumerate((["u", "v", "q", "t"], ["v", "u", "q", "t"])):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("x", data=FIELDS[:4]).attrs["channels"] = names
        dims = ("time", "lat", "lon") if number else ("time", "lon", "lat")
        xarray.Dataset({"x": (dims, FIELDS[:4, :, :3])}).to_netcdf(tmp_path / f"{number}.nc", engine="h5netcdf")
    problem = r"x of .*/1.h5 has channels \['v', 'u', .*, and that of .* \['u', 'v', .*; expected the same"
    with pytest.raises(UserError, match=problem):
        arrays(f"{tmp_path}/*.h5:x")
    problem = r"x of .*/1.nc has dimensions \['time', 'lat', 'lon'\], and that of .* \['time', 'lon', 'lat'\]; expected"
    with pytest.raises(UserError, match=problem):
        arrays(f"{tmp_path}/*.nc:x")


def open_files():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", ["h5", "nc"])
def test_data_that_are_opened_again_and_again_leave_no_file_open(tmp_path, kind):
    """An elastic run opens them at each change of its ranks."""
    data = parts(tmp_path, kind)

    def used():
        source = arrays(f"{data}:t2m", conditions=("hour",))
        np.testing.assert_array_equal(source.fetch_batch(np.arange(24))[..., 0], FIELDS)

    used()
    before = open_files()
    for _ in range(3):
        used()
    assert open_files() == before
