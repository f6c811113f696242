"""What attributes by the CF conventions say of numbers: which are missing, which are valid, and how they are packed."""

import h5py
import numpy as np
import pytest
import xarray
from hvdgan.data.packing.array_part import read_block

from arrays_on_disk import arrays
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE
from hvdgan.data.arrays.mapped import mapped
from hvdgan.data.arrays.statistics import with_statistics
from hvdgan.data.base.cf_numbers import rules_of
from hvdgan.data.base.source import BadImage

FIELDS = np.random.default_rng(0).random((6, 4, 5)).astype(np.float32)
UNWRITTEN = 9.969209968386869e36


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
        engine = {"nc": "h5netcdf", "nc3": "scipy"}[kind]
        dataset.to_netcdf(folder / "a.nc", engine=engine, encoding=encoding)
    return f"{folder}/a.{kind.rstrip('3')}"


def with_number(number):
    """The fields, with one number of the fourth sample replaced."""
    numbers = FIELDS.copy()
    numbers[3, 0, 0] = number
    return numbers


def refusal(**settings):
    with pytest.raises(UserError) as caught:
        arrays(**settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refusals_beside(data):
    """Of the samples that have a condition, and of those that have a constant."""
    assert len(arrays(f"{data}:good")) == 6
    for settings in ({"conditions": ("energy",)}, {"constants": "ground", "constant_values": "none"}):
        yield refusal(data=f"{data}:good", **settings)


@pytest.mark.parametrize("kind", ["nc", "nc3", "zarr", "h5"])
@pytest.mark.parametrize(
    ("number", "attributes", "problem"),
    [
        (UNWRITTEN, {}, "9.96921e+36, which NetCDF leaves where nothing was written"),
        (-999, {"missing_value": "-999"}, "-999, which its attribute missing_value declares to be missing"),
    ],
)
def test_numbers_that_stand_for_missing_ones_are_refused_by_name(tmp_path, kind, number, attributes, problem):
    data = written(tmp_path, kind, with_number(number), **attributes)
    assert f"{data}:t2m[3]: t2m has the number {problem}" in refusal(data=f"{data}:t2m")
    of_condition, of_constant = refusals_beside(data)
    assert f"{data}:energy[3]: energy has the number {problem}" in of_condition
    assert f"ground has the number {problem}" in of_constant


@pytest.mark.parametrize("kind", ["nc", "nc3", "zarr", "h5"])
@pytest.mark.parametrize(
    ("number", "attributes", "problem"),
    [
        (1.5, {"valid_range": np.array([0, 1], "f4")}, "1.5, outside of its valid range, 0 to 1, "),
        (-0.5, {"valid_min": np.float32(0)}, "-0.5, outside of its valid range, 0 to any, "),
        (1.5, {"valid_max": np.float32(1)}, "1.5, outside of its valid range, any to 1, "),
    ],
)
def test_a_number_outside_of_the_limits_leaves_out_its_sample(tmp_path, kind, number, attributes, problem):
    data = written(tmp_path, kind, with_number(number), **attributes)
    source = arrays(f"{data}:t2m", values=None)
    assert str(source.values.images) == "range:0,1"
    with pytest.raises(BadImage) as caught:
        source.fetch_batch(np.arange(6))
    assert caught.value.bad_file.name == f"{data}:t2m[3]"
    assert caught.value.bad_file.reason.startswith(f"t2m has the number {problem}")
    others = np.array([5, 0, 1, 2, 4])
    np.testing.assert_array_equal(source.fetch_batch(others)[..., 0], FIELDS[others])
    of_condition, of_constant = refusals_beside(data)
    assert f"{data}:energy[3]: energy has the number {problem}" in of_condition
    assert f"ground has the number {problem}" in of_constant


def test_samples_that_are_all_outside_of_the_limits_are_refused(tmp_path):
    data = written(tmp_path, "nc", FIELDS, valid_min=np.float32(2))
    assert f"{data}:t2m[0]: t2m has the number " in refusal(data=f"{data}:t2m")


@pytest.mark.parametrize(
    ("kind", "number", "attributes"),
    [
        ("h5", -9999, {"_FillValue": np.float32(-9999)}),
        ("h5", UNWRITTEN, {}),
        ("nc", UNWRITTEN, {}),
        ("zarr", -999, {"missing_value": "-999"}),
        ("nc", 7, {"valid_max": np.float32(1)}),
    ],
)
def test_a_missing_number_beyond_the_samples_looked_at_leaves_out_its_sample(tmp_path, kind, number, attributes):
    numbers = np.random.default_rng(1).random((200, 4, 5)).astype(np.float32)
    numbers[1, 2, 3] = number  # none of the 64 that are looked at before
    source = arrays(f"{written(tmp_path, kind, numbers, **attributes)}:t2m", values="standard")
    values = with_statistics(source, ALONE)
    (step,) = values.images.chains[0]
    np.testing.assert_allclose(step.means, np.delete(numbers, 1, 0).astype(np.float64).mean(), rtol=1e-12)
    networks_see = mapped(source, values)
    for _ in range(2):
        with pytest.raises(BadImage, match=r"t2m\[1\]: t2m has the number "):
            networks_see.fetch_batch(np.array([0, 1, 2]))
    assert abs(networks_see.fetch_batch(np.array([0, 2]))).max() < 5
    found, reasons = read_block(source, np.arange(3))
    assert list(reasons) == [1] and "t2m has the number" in reasons[1]
    np.testing.assert_array_equal(found[0][[0, 2], ..., 0], numbers[[0, 2]])


def test_an_attribute_says_that_the_number_of_unwritten_ones_is_meant(tmp_path):
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    before, after = (written(tmp_path / name, "nc", with_number(UNWRITTEN)) for name in ("before", "after"))
    assert "if this one is meant, add an attribute _FillValue with another number" in refusal(data=f"{before}:t2m")
    with h5py.File(after, "a") as file:
        file["t2m"].attrs["_FillValue"] = np.float32(-1)
    assert arrays(f"{after}:t2m").fetch(3).max() == np.float32(UNWRITTEN)


def test_whole_numbers_that_netcdf_leaves_count_in_netcdf_alone(tmp_path):
    numbers = (FIELDS * 90).astype(np.int16)
    numbers[3, 0, 0] = -32767
    found = arrays(f"{written(tmp_path, 'zarr', numbers)}:t2m").fetch_batch(np.arange(6))
    np.testing.assert_array_equal(found[..., 0], numbers)
    assert "t2m has the number -32767, which NetCDF" in refusal(data=f"{written(tmp_path, 'nc', numbers)}:t2m")


def test_classes_that_are_declared_missing_are_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["labels"] = FIELDS, [0, 1, 2, -1, 0, 1]
        file["labels"].attrs["_FillValue"] = -1
    assert "a.h5:labels[3]: labels has the number -1, which" in refusal(data=f"{tmp_path}/a.h5:x")


def test_numbers_on_the_limits_and_declared_missing_ones_are_no_error(tmp_path):
    attributes = {"valid_range": np.array([0, 0.1]), "missing_value": np.float32(-999)}
    numbers = np.minimum(FIELDS, np.float32(0.1))
    numbers[3, 0, 0] = -999
    found = arrays(f"{written(tmp_path, 'nc', numbers, **attributes)}:t2m").fetch_batch(np.arange(6))[..., 0]
    assert np.isnan(found[3, 0, 0]) and np.nanmax(found) == np.float32(0.1)


@pytest.mark.parametrize(
    ("attributes", "stored", "error", "problem"),
    [
        ({"valid_range": np.array([0, 90], "i2")}, 95, BadImage, r"0\.95, outside of its valid range, 0 to 0\.9, "),
        ({"valid_range": [0, 90]}, 95, BadImage, r"0\.95, outside of its valid range, 0 to 0\.9, "),
        ({"valid_range": [0.0, 0.9]}, 95, BadImage, r"0\.95, outside of its valid range, "),
        ({}, -32767, UserError, r"-327\.67, which NetCDF leaves"),
    ],
)
def test_limits_of_packed_numbers_are_packed_too_if_they_are_whole(tmp_path, attributes, stored, error, problem):
    numbers = (FIELDS * 90).astype(np.int16)
    numbers[0, 0, 0] = 90
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    good = arrays(f"{written(tmp_path / 'good', 'nc', numbers, scale_factor=0.01, **attributes)}:t2m")
    np.testing.assert_allclose(good.fetch_batch(np.arange(6))[..., 0], numbers * 0.01, rtol=1e-6)
    numbers[3, 0, 0] = stored
    data = written(tmp_path / "bad", "nc", numbers, scale_factor=0.01, **attributes)
    with pytest.raises(error, match=rf"t2m\[3\]: t2m has the number {problem}"):
        arrays(f"{data}:t2m").fetch_batch(np.arange(6))


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
        {"valid_min": -1e300, "valid_max": 1e300},
        {"valid_range": np.array([0, 0])},
        {"valid_min": 9.0, "valid_max": -9},
        {"valid_range": [0.0, 0.0], "scale_factor": 0.1},
    ],
)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u2", "i8"])
def test_attributes_that_say_nothing_of_the_numbers(attributes, dtype):
    assert rules_of("x", attributes, np.dtype(dtype)).broken_by(np.arange(6).astype(dtype).reshape(3, 2)) is None
