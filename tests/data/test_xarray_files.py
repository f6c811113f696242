"""NetCDF and Zarr: variables as channels, dimensions as axes, and xarray's decoding of numbers."""

import numpy as np
import pytest
import xarray
import zarr

from arrays_on_disk import arrays, seen
from hvdgan.data.bad_files import BadImage
from hvdgan.errors import UserError

RANDOM = np.random.default_rng(0)
T2M, U10, V10 = (RANDOM.standard_normal((20, 6, 8)).astype(np.float32) + 280 for _ in range(3))
LEVELS = RANDOM.standard_normal((20, 3, 6, 8)).astype(np.float32)
GROUND = RANDOM.random((6, 8), np.float32)
ORDER = np.array([19, 0, 7, 7, 8])
WEATHER = xarray.Dataset(
    {
        "t2m": (("time", "lat", "lon"), T2M, {"units": "K"}),
        "v10": (("time", "lat", "lon"), V10, {"units": "m s-1"}),
        "u10": (("time", "lat", "lon"), U10, {"units": "m s-1"}),
        "coarse": (("time", "low_lat", "low_lon"), T2M[:, ::2, ::2]),
        "orography": (("lat", "lon"), GROUND, {"units": "m"}),
        "mask": (("one", "lat", "lon"), (GROUND > 0.5)[None].astype(np.int8)),
        "hour": (("time",), np.arange(20) % 24, {"units": "h"}),
        "kind": (("time",), (np.arange(20) % 3).astype(np.int32)),
    },
    coords={"time": ("time", np.arange(20), {"units": "hours since 2000-01-01"}), "lat": np.arange(6.0)},
)


def write(folder, kind, dataset=WEATHER, **encoding):
    if kind == "zarr":
        dataset.to_zarr(folder / "weather.zarr", consolidated=False, encoding=encoding)
        return f"{folder}/weather.zarr"
    dataset.to_netcdf(folder / "weather.nc", engine="h5netcdf", encoding=encoding)
    return f"{folder}/weather.nc"


@pytest.mark.parametrize("kind", ["nc", "zarr"])
def test_named_variables_become_channels_with_their_units(tmp_path, kind):
    settings = {"conditions": ("hour",), "constants": "orography,mask", "constant_values": "none"}
    source = arrays(f"{write(tmp_path, kind)}:t2m,u10,v10", **settings)
    np.testing.assert_array_equal(source.fetch_batch(ORDER)["images"], np.stack([T2M, U10, V10], -1)[ORDER])
    assert source.values.images.channels == ("t2m", "u10", "v10")
    assert source.values.images.units == ("K", "m s-1", "m s-1")
    assert source.conditions[:, 0].tolist() == list(range(20)) and source.values.conditions.units == ("h",)
    np.testing.assert_array_equal(source.constants, np.stack([GROUND, GROUND > 0.5], -1))
    assert source.values.constants.channels == ("orography", "mask")


def test_packed_months_are_joined_with_plain_ones_of_another_precision(tmp_path):
    """Networks see float32; the precision after decoding follows from that of the scale alone."""
    for month, encoding in enumerate(
        ({}, {"dtype": "i2", "scale_factor": 0.001, "add_offset": 280.0, "_FillValue": -32767}, {})
    ):
        part = WEATHER[["t2m", "hour"]].isel(time=slice(5 * month, 5 * month + 5))
        part["hour"] = ("time", part["hour"].values.astype([np.float32, np.float64, np.float16][month]))
        part.to_netcdf(tmp_path / f"m{month}.nc", engine="h5netcdf", encoding={"t2m": encoding})
    source = arrays(f"{tmp_path}/m*.nc:t2m", conditions=("hour",))
    found = source.fetch_batch(np.array([14, 7, 0]))["images"][..., 0]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found[[0, 2]], T2M[[14, 0]])
    np.testing.assert_allclose(found[1], T2M[7], atol=6e-4)
    assert source.conditions[:, 0].tolist() == list(range(15))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda month: month.astype(np.int32), r"m1\.nc has type int32, and that of .*m0\.nc float32"),
        (lambda month: month.transpose("time", "lon", "lat"), r"m1\.nc has dimensions .*lon.*lat.*, and that of"),
    ],
)
def test_files_of_other_types_or_dimensions_are_not_joined(tmp_path, change, problem):
    for month, each in enumerate((WEATHER[["t2m"]], change(WEATHER[["t2m"]]))):
        each.isel(lon=slice(6)).to_netcdf(tmp_path / f"m{month}.nc", engine="h5netcdf")
    with pytest.raises(UserError, match=problem):
        arrays(f"{tmp_path}/m*.nc:t2m")


def test_levels_are_depth_or_channels_by_the_axes(tmp_path):
    dims = ("time", "level", "lat", "lon")
    fields = xarray.Dataset({"q": (dims, LEVELS, {"units": "g"}), "r": (dims, LEVELS + 1)})
    data = write(tmp_path, "nc", fields)
    volume = arrays(f"{data}:q,r")
    np.testing.assert_array_equal(volume.fetch_batch(ORDER)["images"], np.stack([LEVELS, LEVELS + 1], -1)[ORDER])
    flat = arrays(f"{data}:q,r", axes="CHW")
    expected = np.moveaxis(np.concatenate([LEVELS, LEVELS + 1], 1), 1, -1)
    np.testing.assert_array_equal(flat.fetch_batch(ORDER)["images"], expected[ORDER])
    assert flat.values.images.channels == ("q_0", "q_1", "q_2", "r_0", "r_1", "r_2")


@pytest.mark.parametrize("kind", ["nc", "zarr"])
def test_packed_numbers_are_decoded_as_xarray_does(tmp_path, kind):
    encoding = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -9999}
    encoding |= {"chunks" if kind == "zarr" else "chunksizes": (3, 4, 5)}
    fields = WEATHER[["t2m"]].copy(deep=True)
    fields["t2m"].values[8, 2, 3] = np.nan
    data = write(tmp_path, kind, fields, t2m=encoding)
    source = arrays(data)
    options = {"engine": "zarr", "consolidated": False} if kind == "zarr" else {}
    with xarray.open_dataset(data, **options) as opened:
        expected = opened["t2m"].values
    np.testing.assert_array_equal(source.fetch_batch(ORDER)["images"][..., 0], expected[ORDER])
    assert abs(expected[7] - T2M[7]).max() < 0.006 and np.isnan(expected).sum() == 1
    with pytest.raises(BadImage, match=r"t2m\[8\]: 1 of 48 numbers are NaN"):
        seen(source).fetch_batch(ORDER)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nothing", "no array nothing in .*; it has t2m, v10, u10"),
        ("t2m,coarse", "coarse has the dimensions time 20, low_lat 3, low_lon 4, and t2m time 20, lat 6, lon 8"),
        ("time", r"holds dates \(hours since 2000-01-01\); expected numbers"),
    ],
)
def test_variables_that_cannot_be_used(tmp_path, name, problem):
    with pytest.raises(UserError, match=problem) as caught:
        arrays(f"{write(tmp_path, 'nc')}:{name}")
    assert "\n" not in str(caught.value)


def test_a_file_of_the_kind_cdf_5_is_named_with_its_cure(tmp_path):
    (tmp_path / "a.nc").write_bytes(b"CDF\5" + bytes(60))
    with pytest.raises(UserError, match="a.nc: cannot be read by xarray: CDF-5, .*nccopy -k nc4"):
        arrays(f"{tmp_path}/a.nc")


def test_time_after_the_first_dimension_is_refused_unless_the_axes_are_given(tmp_path):
    turned = (("lat", "lon", "time"), T2M[0, ..., None] + np.arange(5))
    data = write(tmp_path, "nc", xarray.Dataset({"q": turned}))
    problem = "--data .*:q: its first dimension lat counts the samples, and time comes later; write it with time first"
    with pytest.raises(UserError, match=f"{problem}.*--axes$"):
        arrays(f"{data}:q", values="standard")
    assert arrays(f"{data}:q", axes="HW").layout.shape == (8, 5, 1)


def test_a_variable_with_one_more_dimension_is_a_vector_and_several_are_joined_only_if_the_axes_say_so(tmp_path):
    q, dims = LEVELS[:, :, 0, 0], ("time", "level")
    data = write(tmp_path, "nc", xarray.Dataset({"q": (dims, q, {"units": "g"}), "r": (dims, q + 1, {"units": "K"})}))
    source = arrays(f"{data}:q", conditions=("r",))
    np.testing.assert_array_equal(source.fetch_batch(ORDER)["images"], q[ORDER])
    assert source.values.images.channels == ("q_0", "q_1", "q_2") and source.values.images.units == ("g",) * 3
    np.testing.assert_array_equal(source.conditions, q + 1)
    assert source.values.conditions.channels == ("r_0", "r_1", "r_2") and source.values.conditions.units == ("K",) * 3
    joined = arrays(f"{data}:q,r", axes="C")
    np.testing.assert_array_equal(joined.fetch_batch(ORDER)["images"], np.concatenate([q, q + 1], 1)[ORDER])


@pytest.mark.parametrize(("version", "named"), [(3, True), (3, False), (2, True)])
def test_chunks_of_zarr_that_are_not_stored_are_named_unless_they_are_read_as_missing(tmp_path, version, named):
    group = zarr.open(str(tmp_path / "a.zarr"), mode="w", zarr_format=version)
    names = {"dimension_names": ["sample", "x"]} if named and version == 3 else {}
    array = group.create_array("x", shape=(8, 4), chunks=(2, 4), dtype="f4", fill_value=0.5, **names)
    if named and version == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = ["sample", "x"]
    array[:4] = np.linspace(0, 1, 16).reshape(4, 4)
    source = arrays(f"{tmp_path}/a.zarr:x")
    numbers = source.images.read(np.array([7]))
    if version == 2:
        assert np.isnan(numbers).all() and not source.remarks
        return
    assert (numbers == 0.5).all() and len(source.remarks) == 1
    assert "2 of 4 chunks are not stored" in source.remarks[0] and "0.5" in source.remarks[0]
    array[4:] = array[:4]
    assert not arrays(f"{tmp_path}/a.zarr:x").remarks
