"""What attributes by the CF conventions say of numbers: which are missing, which are valid, and how they are packed."""

import numpy as np
import pytest
import xarray

from arrays_on_disk import arrays
from hvdgan.cli.errors import UserError
from hvdgan.data.base.cf_numbers import rules_of

FIELDS = np.random.default_rng(0).random((6, 4, 5)).astype(np.float32)
UNWRITTEN = 9.969209968386869e36


def written(folder, kind, numbers, **attributes):
    """A file whose numbers are stored as they are given, with these attributes."""
    fields = {
        "t2m": (("time", "lat", "lon"), numbers, attributes),
        "energy": ("time", numbers[:, 0, 0], attributes),
        "ground": (("lat", "lon"), numbers[3], attributes),
        "good": (("time", "lat", "lon"), FIELDS),
    }
    dataset, encoding = xarray.Dataset(fields), {name: {"_FillValue": None} for name in fields}
    if kind == "zarr":
        dataset.to_zarr(folder / "a.zarr", consolidated=False, encoding=encoding)
    else:
        engine = {"nc": "h5netcdf", "nc3": "scipy"}[kind]
        dataset.to_netcdf(folder / "a.nc", engine=engine, encoding=encoding)
    return f"{folder}/a.{kind.rstrip('3')}"


def with_number(number):
    """The fields, with one number of the fourth sample replaced."""
    numbers = FIELDS.copy()
    numbers[3, 0, 0] = number
    return numbers


@pytest.mark.parametrize("kind", ["nc", "nc3", "zarr"])
@pytest.mark.parametrize(
    ("number", "attributes", "problem"),
    [
        (UNWRITTEN, {}, "9.96921e+36, which NetCDF leaves where nothing was written"),
        (-999, {"missing_value": "-999"}, "-999, which its attribute missing_value declares to be missing"),
        (1.5, {"valid_range": np.array([0, 1], "f4")}, "1.5, outside of its valid range, 0 to 1, "),
        (-0.5, {"valid_min": np.float32(0)}, "-0.5, outside of its valid range, 0 to any, "),
        (1.5, {"valid_max": np.float32(1)}, "1.5, outside of its valid range, any to 1, "),
    ],
)
def test_numbers_that_are_missing_or_invalid_are_refused_by_name(tmp_path, kind, number, attributes, problem):
    data = written(tmp_path, kind, with_number(number), **attributes)
    for settings, where in (
        ({"data": f"{data}:t2m"}, "a.{}:t2m[3]: t2m"),
        ({"data": f"{data}:good", "conditions": ("energy",)}, "a.{}:energy[3]: energy"),
        ({"data": f"{data}:good", "constants": "ground", "constant_values": "none"}, "a.{}: ground"),
    ):
        with pytest.raises(UserError) as caught:
            arrays(**settings)
        message = str(caught.value)
        assert f"{where.format(kind.rstrip('3'))} has the number {problem}" in message and "\n" not in message
    assert len(arrays(f"{data}:good")) == 6


def test_numbers_on_the_limits_and_declared_missing_ones_are_no_error(tmp_path):
    attributes = {"valid_range": np.array([0, 0.1]), "missing_value": np.float32(-999)}
    numbers = np.minimum(FIELDS, np.float32(0.1))
    numbers[3, 0, 0] = -999
    found = arrays(f"{written(tmp_path, 'nc', numbers, **attributes)}:t2m").fetch_batch(np.arange(6))[..., 0]
    assert np.isnan(found[3, 0, 0]) and np.nanmax(found) == np.float32(0.1)


@pytest.mark.parametrize(
    ("attributes", "stored", "problem"),
    [
        ({"valid_range": np.array([0, 90], "i2")}, 95, r"0\.95, outside of its valid range, 0 to 0\.9, "),
        ({"valid_range": [0, 90]}, 95, r"0\.95, outside of its valid range, 0 to 0\.9, "),
        ({"valid_range": [0.0, 0.9]}, 95, r"0\.95, outside of its valid range, "),
        ({}, -32767, r"-327\.67, which NetCDF leaves"),
    ],
)
def test_limits_of_packed_numbers_are_packed_too_if_they_are_whole(tmp_path, attributes, stored, problem):
    numbers = (FIELDS * 90).astype(np.int16)
    numbers[0, 0, 0] = 90
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    assert len(arrays(f"{written(tmp_path / 'good', 'nc', numbers, scale_factor=0.01, **attributes)}:t2m")) == 6
    numbers[3, 0, 0] = stored
    data = written(tmp_path / "bad", "nc", numbers, scale_factor=0.01, **attributes)
    with pytest.raises(UserError, match=rf"t2m\[3\]: t2m has the number {problem}"):
        arrays(f"{data}:t2m")


def test_limits_of_unsigned_numbers_in_a_signed_type():
    attributes = {"valid_range": np.array([0, -2], "i1"), "_Unsigned": "true", "_FillValue": np.int8(-1)}
    rules = rules_of("x", attributes, np.dtype("i1"), lambda numbers: numbers.view(np.uint8))
    assert (rules.low, rules.high) == (0, 254)
    assert rules.broken_by(np.array([[200], [255]], np.uint8))[0] == 1


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"_FillValue": np.nan, "missing_value": "none", "valid_range": "unknown"},
        {"_FillValue": 1e300, "missing_value": np.array([], "f4"), "valid_range": np.array([0, np.nan])},
        {"_FillValue": b"-9", "valid_min": -np.inf, "valid_max": np.inf},
    ],
)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u2", "i8"])
def test_attributes_that_say_nothing_of_the_numbers(attributes, dtype):
    assert rules_of("x", attributes, np.dtype(dtype)).broken_by(np.arange(6).astype(dtype).reshape(3, 2)) is None
