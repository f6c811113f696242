"""What --data and the flags of arrays open: names, inputs, constants, crops; what is unclear is refused in one line."""

import numpy as np
import pytest

from hvdgan.data import open_source
from hvdgan.errors import UserError
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig

RNG = np.random.default_rng(0)
FLOATS = RNG.uniform(0, 1, (6, 8, 12, 2)).astype(np.float32)
PICTURES = RNG.integers(0, 256, (6, 8, 8, 3), np.uint8)


def opened(data, *, paired=False, image_size=None, channels=None, fit=None, **settings):
    config = Config(data=str(data), image_size=image_size, channels=channels, fit=fit, arrays=ArrayConfig(**settings))
    return open_source(config, paired=paired)


SIX = {"x": FLOATS}
RAMP = np.linspace(0, 1, 3 * 3 * 3 * 2).reshape(3, 3, 3, 2)
REFUSED = [
    ({"arr_0": FLOATS, "arr_1": FLOATS}, {}, r"found the arrays arr_0, arr_1; name .* as in --data .*a\.npz:arr_0$"),
    ({"x": PICTURES[..., :2]}, {}, "integers of type uint8 without a map .* such as --values standard"),
    ({"x": RAMP + 1}, {}, r"numbers from 1 to 2 in 3 samples looked at, outside of \[0, 1\] and "),
    ({"x": RAMP * np.nan}, {}, "none of 3 samples looked at has a finite number"),
    (SIX, {"values": "2=none"}, "there is no channel '2'; expected 0, 1"),
    (SIX, {"image_size": 8}, "--image-size: is for 8-bit pictures; .* leave the flag out, or give --crop"),
    (
        SIX,
        {"crop": (4, 4, 4)},
        r"--crop 4,4,4: the samples have shape \(8, 12, 2\); expected 2 lengths up to \(8, 12\)",
    ),
    (SIX, {"paired": True}, "there is no array `inputs` beside the samples; name the array with --inputs"),
    ({**SIX, "inputs": FLOATS * 7}, {"paired": True}, "declare their map, such as --input-values standard"),
    ({**SIX, "inputs": FLOATS[:, ::4, ::4]}, {"paired": True, "crop": (4, 6)}, "expected multiples of that"),
    ({**SIX, "ground": FLOATS[0, :4]}, {"constants": "ground"}, r"shape \(4, 12, 2\); expected \(8, 12\)"),
]


@pytest.mark.parametrize(("arrays", "settings", "message"), REFUSED, ids=[row[2][:40] for row in REFUSED])
def test_what_is_unclear_is_refused(tmp_path, arrays, settings, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match=message) as caught:
        opened(tmp_path / "a.npz", **settings)
    assert "\n" not in str(caught.value)


def test_a_crop_of_one_length_has_it_along_all_axes(tmp_path):
    np.savez(tmp_path / "a.npz", x=FLOATS)
    assert opened(tmp_path / "a.npz", crop=(4,)).layout == opened(tmp_path / "a.npz", crop=(4, 4)).layout
    with pytest.raises(UserError, match=r"--crop 10: .* expected 2 lengths up to \(8, 12\)"):
        opened(tmp_path / "a.npz", crop=(10,))


@pytest.mark.parametrize(
    ("labels", "classes", "names"),
    [
        ([1.0, 2.0, 0.0] * 2, [1, 2, 0] * 2, None),
        (np.array([[2, 0, 1] * 2]), [2, 0, 1] * 2, None),
        ([True, False] * 3, [1, 0] * 3, None),
        (["dog", "cat", "a longer name"] * 2, [2, 1, 0] * 2, ["a longer name", "cat", "dog"]),
        ([b"dog", b"cat"] * 3, [1, 0] * 3, ["cat", "dog"]),
    ],
)
def test_labels_are_integers_whole_floats_or_texts(tmp_path, labels, classes, names):
    np.savez(tmp_path / "a.npz", x=FLOATS, labels=labels)
    source = opened(tmp_path / "a.npz")
    assert (source.labels.tolist(), source.labels.dtype, source.class_names) == (classes, np.int32, names)
    assert not source.remarks


@pytest.mark.parametrize(
    "labels",
    [np.linspace(0, 1, 6), np.array([0, 2**40] * 3), [0, np.nan, 1] * 2, np.eye(6), np.array(["a", 1] * 3, "O")],
)
def test_labels_that_are_no_classes_forbid_nothing_and_are_named(tmp_path, labels):
    np.savez(tmp_path / "a.npz", x=FLOATS, labels=labels)
    source = opened(tmp_path / "a.npz")
    np.testing.assert_array_equal(source.fetch_batch(np.arange(6))["images"], FLOATS)
    (remark,) = source.remarks
    assert (source.labels, source.num_classes) == (None, 0) and "labels" in remark and "\n" not in remark
    if isinstance(labels, np.ndarray) and labels.dtype == float and labels.ndim == 1:
        assert opened(tmp_path / "a.npz", conditions=("labels",)).conditions[:, 0].tolist() == labels.tolist()
    if np.ndim(labels) == 2:
        assert not opened(tmp_path / "a.npz", arrays=("labels",), values_of="labels=none").remarks


def map_of(folder, array, **settings):
    np.save(folder / "a.npy", array)
    return str(opened(folder / "a.npy", **settings).values.images)


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(0, 1, "range:0,1"), (0.2, 0.3, "range:0,1"), (-1e-4, 1.0005, "range:0,1"), (-1, 1, "none"), (-0.1, 0.5, "none")],
)
def test_floats_of_a_usual_range_have_its_map(tmp_path, low, high, found):
    """Numbers that are not finite do not decide."""
    array = low + (high - low) * RAMP
    assert map_of(tmp_path, array.astype(np.float16)) == map_of(tmp_path, array) == found
    array[1, 0, 0] = np.nan, -np.inf
    assert map_of(tmp_path, array) == found


def test_floats_that_hardly_differ_need_a_declared_map(tmp_path):
    """All of them, or those of one channel; but an empty channel does not."""
    close = 0.98 + 0.02 * RAMP
    for array, where in ((close, ""), (np.concatenate([RAMP[..., :1], close[..., :1]], axis=-1), "channel 1: ")):
        with pytest.raises(UserError, match=rf"a\.npy: {where}numbers from .* hardly tell apart .* --values standard"):
            map_of(tmp_path, array)
    assert map_of(tmp_path, close, values="standard") == "standard"
    assert map_of(tmp_path, np.concatenate([RAMP[..., :1], np.zeros((3, 3, 3, 1))], axis=-1)) == "range:0,1"
