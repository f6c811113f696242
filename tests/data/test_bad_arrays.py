"""What is no usable array: one line that names it and exit code 2, or samples left out by name; never other numbers.

Numbers that a file declares to be missing or not valid are NaN or, among integers, a bad sample. An array that changes
during a run ends it; test_unreadable.py has pictures that disappear. Modules: data.arrays, data.valid_numbers"""

import os
import shutil

import h5py
import numpy as np
import pytest
import xarray

from arrays_on_disk import arrays, hdf5, nameless_zarr, netcdf, npy, seen, zarr
from hvdgan.data.bad_files import BadImage
from hvdgan.data.statistics import with_statistics
from hvdgan.errors import RunError, UserError
from hvdgan.errors.shared_errors import ALONE

FLOATS = np.random.default_rng(0).random((12, 4, 4, 2), np.float32)


def test_a_cut_file_is_named(tmp_path):
    data = hdf5(tmp_path, FLOATS)
    os.truncate(tmp_path / "a.h5", os.path.getsize(tmp_path / "a.h5") // 2)
    with pytest.raises(UserError, match="/a.h5: cannot be read as HDF5: ") as caught:
        arrays(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("write", [npy, hdf5, netcdf, zarr, nameless_zarr])
def test_an_array_that_is_written_again_in_place_ends_the_run(tmp_path, write):
    """Otherwise the run would train on the new numbers without a word."""
    fields = np.random.default_rng(0).random((20, 4, 4, 2), np.float32)
    source = arrays(write(tmp_path, fields))
    np.testing.assert_array_equal(source.fetch(3)["images"], fields[3])
    (tmp_path / "new").mkdir()
    write(tmp_path / "new", 1 - fields)
    for path in (tmp_path / "new").rglob("*"):
        if path.is_file():
            shutil.copyfile(path, tmp_path / path.relative_to(tmp_path / "new"))
    with pytest.raises(RunError, match=r"/a\..* cannot be read: the file has changed since the run began"):
        source.fetch(3)


FIELDS = np.random.default_rng(0).random((6, 4, 5)).astype(np.float32)


def written(folder, kind, numbers, **attributes):
    """A file whose numbers are stored as they are given, with these attributes."""
    fields = {
        "t2m": (("time", "lat", "lon"), numbers, attributes),
        "energy": ("time", numbers[:, 0, 0], attributes),
        "ground": (("lat", "lon"), numbers[3], attributes),
        "good": (("time", "lat", "lon"), np.resize(FIELDS, numbers.shape), {}),
    }
    if kind == "h5":
        with h5py.File(folder / "a.h5", "w") as file:
            for name, (_, array, its) in fields.items():
                file.create_dataset(name, data=array).attrs.update(its)
        return f"{folder}/a.h5"
    dataset, encoding = xarray.Dataset(fields), {name: {"_FillValue": None} for name in fields}
    if kind == "zarr":
        dataset.to_zarr(folder / "a.zarr", consolidated=False, encoding=encoding)
    else:
        dataset.to_netcdf(folder / "a.nc", engine="h5netcdf", encoding=encoding)
    return f"{folder}/a.{kind}"


def with_number(number):
    """The fields, with one number of the fourth sample replaced."""
    numbers = FIELDS.copy()
    numbers[3, 0, 0] = number
    return numbers


DECLARED = {
    "never written": (9.969209968386869e36, {}),
    "missing_value": (-999, {"missing_value": np.float32(-999)}),
    "valid_range": (1.5, {"valid_range": np.array([0, 1], "f4")}),
}
ROWS = [("h5", "missing_value"), ("h5", "valid_range"), ("nc", "never written"), ("zarr", "valid_range")]
"""xarray itself decodes _FillValue; only NetCDF leaves numbers of its own where nothing was written"""


@pytest.mark.parametrize(("kind", "name"), ROWS)
def test_floats_that_are_not_valid_are_missing(tmp_path, kind, name):
    number, attributes = DECLARED[name]
    data = written(tmp_path, kind, with_number(number), **attributes)
    source = arrays(f"{data}:t2m", values=None)
    assert str(source.values.images) == "range:0,1"
    np.testing.assert_array_equal(source.fetch_batch(np.arange(6))["images"][..., 0], with_number(np.nan))
    with pytest.raises(BadImage, match=r"t2m\[3\]: 1 of 20 numbers are NaN"):
        seen(source).fetch_batch(np.arange(6))
    assert len(arrays(f"{data}:good")) == 6
    with pytest.raises(UserError, match="energy of sample 3 is nan"):
        arrays(f"{data}:good", conditions=("energy",))
    with pytest.raises(UserError, match="--constants ground: some numbers are not finite"):
        arrays(f"{data}:good", constants="ground", constant_values="none")


@pytest.mark.parametrize(
    ("kind", "number", "attributes"),
    [("h5", -1, {"_FillValue": np.int16(-1)}), ("nc", 95, {"valid_range": np.array([0, 90], "i2")})],
)
def test_a_sample_with_an_integer_that_is_not_valid_is_left_out_by_name(tmp_path, kind, number, attributes):
    numbers = (FIELDS * 90).astype(np.int16)
    numbers[3, 0, 0] = number
    data = written(tmp_path, kind, numbers, **attributes)
    source = arrays(f"{data}:t2m", values="standard")
    others = np.array([5, 0, 1, 2, 4])
    np.testing.assert_array_equal(source.fetch_batch(others)["images"][..., 0], numbers[others])
    with pytest.raises(BadImage, match=rf"t2m\[3\]: 1 of 20 numbers, such as {number}, are missing or not valid"):
        source.fetch_batch(np.arange(6))
    (step,) = with_statistics(source, ALONE).images.chains[0]
    np.testing.assert_allclose(step.means, numbers[others].mean(), rtol=1e-6)
    with pytest.raises(UserError, match=rf"energy\[3\]: 1 of 1 numbers, such as {number}, are missing"):
        arrays(f"{data}:good", conditions=("energy",))
