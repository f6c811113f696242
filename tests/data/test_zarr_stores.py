"""Zarr stores of both formats: their arrays in groups, names of dimensions, and what marks missing numbers."""

import base64
import struct

import numpy as np
import pytest
import xarray
import zarr

from arrays_on_disk import arrays
from hvdgan.cli.errors import UserError
from hvdgan.data.base import zarr_stores

FIELDS = np.random.default_rng(0).standard_normal((9, 4, 5)).astype(np.float32)
DIMS = ("time", "y", "x")
MISSING = (3, 1, 2)
PACKED = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 2.0, "_FillValue": -32767}
FLOATS = {"dtype": "float32", "_FillValue": -9999.0}


def store(folder, zarr_format, *, group=None, encoding=PACKED):
    """Written by xarray, with one number that is missing."""
    fields = FIELDS.copy()
    fields[MISSING] = np.nan
    path = folder / "a.zarr"
    xarray.Dataset({"t2m": (DIMS, fields)}).to_zarr(
        path, group=group, zarr_format=zarr_format, consolidated=False, encoding={"t2m": encoding}
    )
    return str(path)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("encoding", [PACKED, FLOATS], ids=["packed", "floats"])
@pytest.mark.parametrize("group", [None, "surface", "surface/hourly"])
@pytest.mark.parametrize("reader", ["xarray", "zarr"])
def test_a_missing_number_is_nan_in_groups_as_at_the_root(tmp_path, zarr_format, encoding, group, reader):
    data = store(tmp_path, zarr_format, group=group, encoding=encoding)
    with xarray.open_dataset(data, group=group, engine="zarr", consolidated=False) as opened:
        expected = opened["t2m"].values
    if reader == "zarr":
        zarr.open_group(data, mode="a").create_array("plain", data=np.zeros(3))
    source = arrays(f"{data}:{group}/t2m" if group else f"{data}:t2m")
    found = source.fetch_batch(np.arange(9))[..., 0]
    np.testing.assert_array_equal(found, expected)
    assert np.argwhere(np.isnan(found)).tolist() == [list(MISSING)]


@pytest.mark.parametrize("reader", ["xarray", "zarr"])
def test_the_stamp_tells_that_a_chunk_was_written_again(tmp_path, reader):
    data = store(tmp_path, 2, group="surface/hourly")
    if reader == "zarr":
        zarr.open_group(data, mode="a").create_array("plain", data=np.zeros(3))
    before = arrays(f"{data}:surface/hourly/t2m").stamp()
    assert arrays(f"{data}:surface/hourly/t2m").stamp() == before
    stored = zarr.open_array(f"{data}/surface/hourly/t2m", mode="r+")
    stored[0] = stored[0]
    assert arrays(f"{data}:surface/hourly/t2m").stamp() != before


def test_zeros_of_other_programs_are_numbers(tmp_path):
    """Zarr itself fills with 0, which is no mark of missing numbers."""
    sparse = np.where(FIELDS > 1, FIELDS, 0)
    array = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2).create_array("ECAL", data=sparse)
    assert array.fill_value == 0
    np.testing.assert_array_equal(arrays(f"{tmp_path}/a.zarr:ECAL").fetch_batch(np.arange(9))[..., 0], sparse)


@pytest.mark.parametrize("given", [-9.5, "-9.5", "NaN", base64.b64encode(struct.pack("<d", -9.5)).decode()])
def test_the_mark_of_missing_floats_is_a_number(tmp_path, given):
    array = zarr.create_array(tmp_path / "a.zarr", data=FIELDS, attributes={"_FillValue": given, "units": "K"})
    found = zarr_stores.attributes_of(f"{tmp_path}/a.zarr", array)
    np.testing.assert_equal(found, {"_FillValue": np.nan if given == "NaN" else -9.5, "units": "K"})


@pytest.mark.parametrize("given", ["AAAA", "nothing"])
def test_a_damaged_mark_is_named(tmp_path, given):
    zarr.create_array(tmp_path / "a.zarr", data=FIELDS, attributes={"_FillValue": given})
    with pytest.raises(UserError, match="a.zarr: cannot be read by xarray: "):
        arrays(f"{tmp_path}/a.zarr")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_arrays_of_a_store_and_the_one_without_names(tmp_path, zarr_format):
    data = store(tmp_path, zarr_format, group="surface")
    assert zarr_stores.is_store(data) and not zarr_stores.is_store(str(tmp_path))
    assert list(zarr_stores.arrays_of(data)) == ["surface/t2m"] and zarr_stores.unnamed_array(data) is None
    group = zarr.open_group(data, mode="a")
    group.create_array("other/plain", data=FIELDS)
    assert zarr_stores.unnamed_array(data) == "other/plain"
    group.create_array("own", data=FIELDS)
    assert list(zarr_stores.arrays_of(data)) == ["other/plain", "own", "surface/t2m"]
    assert zarr_stores.unnamed_array(data) == "own"
    alone = f"{data}/surface/t2m"
    assert list(zarr_stores.arrays_of(alone)) == [""] and zarr_stores.unnamed_array(alone) == ""
