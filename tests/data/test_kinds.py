"""Which numbers are taken, the map that floats get without a flag, and classes."""

import numpy as np
import pytest

from hvdgan.cli.errors import UserError
from hvdgan.data.kinds import check_labels, check_numbers, map_of, spread
from hvdgan.data.numpy_files import NumpyArray


def mapped_by(array, given=None):
    stored = NumpyArray("a.npy", array)
    return str(map_of(given, stored, array[..., None], flag="--values", channels=("0",)))


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(0, 1, "range:0,1"), (0.2, 0.3, "range:0,1"), (-1e-4, 1.0005, "range:0,1"), (-1, 1, "none"), (-0.1, 0.5, "none")],
)
def test_floats_of_a_usual_range_have_its_map(low, high, found):
    """Numbers that are not finite do not decide."""
    array = np.linspace(low, high, 27).reshape(3, 3, 3)
    assert mapped_by(array.astype(np.float16)) == mapped_by(array) == found
    array[1, 0] = np.nan, np.inf, -np.inf
    assert mapped_by(array) == found


@pytest.mark.parametrize(("low", "high"), [(1.6e-6, 2e-6), (0.98, 1), (-0.01, 0.03)])
def test_floats_that_hardly_differ_need_a_declared_map(low, high):
    array = np.linspace(low, high, 27).reshape(3, 3, 3)
    with pytest.raises(UserError, match=r"^--data a\.npy: numbers from .* hardly tell apart .* --values standard"):
        mapped_by(array)
    assert mapped_by(array, "standard") == "standard" and mapped_by(array, "range:0,1") == "range:0,1"


def map_of_channels(*channels):
    """The map of fields, or of vectors, whose channels have these numbers."""
    array = np.stack(channels, axis=-1)
    names = [f"c{place}" for place in range(len(channels))]
    return str(map_of(None, NumpyArray("a.npy", array), array, flag="--values", channels=names))


def test_one_channel_whose_numbers_hardly_differ_is_named():
    """Of 512 numbers from 1.8e-6 to 1.9e-6, float32 keeps 5 in the range of the others."""
    whole, tiny = np.linspace(0, 1, 512).reshape(8, 8, 8), np.linspace(1.8e-6, 1.9e-6, 512).reshape(8, 8, 8)
    message = (
        r"^--data a\.npy: channel c1: numbers from 1\.8e-06 to 1\.9e-06 in [0-9]+ samples looked at, which networks "
        "would hardly tell apart without a map; declare one, such as --values standard"
    )
    for shape in ((8, 8, 8), (512,)):
        with pytest.raises(UserError, match=message):
            map_of_channels(whole.reshape(shape), tiny.reshape(shape))


@pytest.mark.parametrize("value", [0, 2e-6, np.nan])
def test_an_empty_channel_needs_no_map(value):
    whole = np.linspace(0, 1, 512).reshape(8, 8, 8)
    assert map_of_channels(np.full((8, 8, 8), value), whole) == "range:0,1"


def test_a_mask_and_the_border_of_flattened_pictures_need_no_map():
    whole = np.linspace(0, 1, 8)
    assert map_of_channels(*np.broadcast_to(whole > 0.9, (2, 8, 8, 8)).astype(float)) == "range:0,1"
    assert map_of_channels(whole, np.where(whole > 0.9, 1 / 255, 0)) == "range:0,1"


def test_integers_that_float32_rounds_are_counted_in_a_line():
    def rounding(given, largest, dtype="i8"):
        array = np.array([[0, 1], [2, largest]], dtype)
        return map_of(given, NumpyArray("a.npy", array), array, flag="--values", channels=("a", "b")).remark

    line = (
        "--values: a.npy has integers up to 16,777,217 in 2 samples looked at, and networks see float32, which rounds "
        "those above 16,777,216"
    )
    for given in ("none", "a=log1p;b=none"):
        assert rounding(given, 2**24 + 1) == line and rounding(given, 2**24 + 1, "u4") == line
    assert rounding("none", -(2**24) - 1, "i4") == line
    for given, largest in (("none", 2**24), ("standard", 2**40), ("a=none;b=log1p", 2**40)):
        assert not rounding(given, largest)
    assert not rounding("none", 255, "u1") and not rounding("none", 2**40, "f8")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((3, 2, 2), 1.01), r"numbers from 1\.01 to 1\.01 in 3 samples looked at, outside of \[0, 1\] and "),
        (np.full((3, 2, 2), np.nan), "none of 3 samples looked at has a finite number"),
        (np.ones((3, 2, 2), np.uint16), "integers of type uint16 without a map .* such as --values standard"),
    ],
)
def test_other_numbers_need_a_declared_map(array, message):
    with pytest.raises(UserError, match=message) as caught:
        mapped_by(array)
    assert str(caught.value).startswith("--data a.npy: ") and "\n" not in str(caught.value)
    assert mapped_by(array, "log1p") == "log1p"


@pytest.mark.parametrize("dtype", ["c16", "U3", "S3", "M8[s]", "m8[s]", "?", np.longdouble])
def test_what_is_no_real_number_is_refused(dtype):
    with pytest.raises(UserError, match=r"^--data a\.npy: numbers of type .*; expected float16, float32, float64 or"):
        check_numbers(NumpyArray("a.npy", np.zeros((2, 3), dtype)))


@pytest.mark.parametrize(("count", "number"), [(1, 1), (3, 3), (64, 64), (100_000, 64)])
def test_a_sample_is_spread_over_all(count, number):
    places = spread(count)
    assert len(places) == number and places[0] == 0 and places[-1] == count - 1


def test_classes():
    assert check_labels("a", np.array([3, -1], np.int64), 2).dtype == np.int32
    for labels, message in (
        (np.array([1.0, 2.0]), "type float64; expected one integer for each of 2 images"),
        (np.array([1]), r"labels of shape \(1,\)"),
        (np.array([0, 2**40]), "expected values of int32"),
    ):
        with pytest.raises(UserError, match=message):
            check_labels("a", labels, 2)
