""".npy and .npz arrays: their types and shapes; arrays that hold no images are refused.

Modules: data.formats.pixels.
"""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hvdgan.cli.errors import UserError
from hvdgan.data import BadImage
from reading import all_images, opened

RAMP = np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3)
GREY = RAMP[..., :1]
UNIT = RAMP / np.float32(255)
CLEAR = np.dstack([np.full((8, 8, 3), 90, np.uint8), np.zeros((8, 8, 1), np.uint8)])[None]

CONVERTED = [
    ("colour", RAMP, RAMP),
    ("grey", GREY, GREY),
    ("grey without an axis", GREY[..., 0], GREY),
    ("16 bits", RAMP.astype(np.uint16) * 257 + np.where(RAMP < 255, 100, -100).astype(np.uint16), RAMP),
    ("16 bits, big-endian", RAMP.astype(">u2") * 257, RAMP),
    ("floats from 0", UNIT, RAMP),
    ("doubles from 0", UNIT.astype(np.float64), RAMP),
    ("halves from -1", (UNIT * 2 - 1).astype(np.float16), RAMP),
    ("a little below 0", np.where(RAMP > 0, UNIT, np.float32(-0.001)), RAMP),
    ("a little above 1", np.where(RAMP < 255, UNIT * 2 - 1, np.float32(1.002)), RAMP),
    ("Fortran's order", np.asfortranarray(RAMP), RAMP),
    ("transparent", CLEAR, np.full((1, 8, 8, 3), 255)),
]


@pytest.mark.parametrize("way", ["npy", "npz", "compressed"])
@pytest.mark.parametrize(("array", "expected"), [row[1:] for row in CONVERTED], ids=[row[0] for row in CONVERTED])
def test_arrays(tmp_path, way, array, expected):
    path = tmp_path / ("an array.npy" if way == "npy" else "an array.npz")
    if way == "npy":
        np.save(path, array)
    else:
        (np.savez if way == "npz" else np.savez_compressed)(path, pictures=array)
    source = opened(path)
    assert (len(source), source.channels) == (len(expected), expected.shape[-1])
    np.testing.assert_array_equal(all_images(source), expected)
    np.testing.assert_array_equal(source.fetch(len(source) - 1), expected[-1])
    assert (str(path) in Path("/proc/self/maps").read_text()) == (way != "compressed")


def test_arrays_are_cropped_resized_and_recoloured(tmp_path):
    array = np.zeros((2, 16, 32, 3), np.uint8)
    array[:, :, 8:16, 0] = array[:, :, 16:24, 2] = 255
    np.save(tmp_path / "wide.npy", array)
    colour = all_images(opened(tmp_path / "wide.npy")).astype(int)
    assert colour.shape == (2, 8, 8, 3)
    assert abs(colour[:, :, :3] - (255, 0, 0)).max() < 25 and abs(colour[:, :, 5:] - (0, 0, 255)).max() < 25
    grey = all_images(opened(tmp_path / "wide.npy", channels=1)).astype(int)
    assert grey.shape == (2, 8, 8, 1) and abs(grey[:, :, :3] - 76).max() < 8
    np.save(tmp_path / "grey.npy", GREY)
    np.testing.assert_array_equal(all_images(opened(tmp_path / "grey.npy", channels=3)), np.repeat(GREY, 3, -1))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("name", ["images", "x", "arr_0", "anything"])
def test_npz_with_labels(tmp_path, save, name):
    more = {} if name == "anything" else {"other": np.zeros(3)}
    save(tmp_path / "set.npz", **{name: RAMP}, **more, labels=np.array([5, 0, 7], np.uint8))
    source = opened(tmp_path / "set.npz")
    np.testing.assert_array_equal(all_images(source), RAMP)
    assert source.labels.tolist() == [5, 0, 7] and source.labels.dtype == np.int32


def test_a_large_compressed_file_is_reported_to_stay_in_memory(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("hvdgan.data.sources.arrays.LARGE_BYTES", 100)
    np.savez(tmp_path / "mapped.npz", RAMP)
    np.savez_compressed(tmp_path / "packed.npz", RAMP)
    opened(tmp_path / "mapped.npz")
    assert not caplog.records
    opened(tmp_path / "packed.npz")
    assert "packed.npz: compressed, so every rank holds" in caplog.text


@pytest.mark.parametrize("value", [np.nan, np.inf, 1.1, -0.1])
def test_an_image_outside_the_range_is_a_bad_image(tmp_path, value):
    array = np.full((200, 8, 8, 1), 0.5)
    array[152, 3, 3] = value  # not among the images that the range is taken from
    np.save(tmp_path / "odd.npy", array)
    source = opened(tmp_path / "odd.npy")
    assert (source.fetch(150) == 128).all()
    with pytest.raises(BadImage) as caught:
        source.fetch_batch(np.array([150, 152, 154]))
    assert caught.value.bad_file == (f"{tmp_path}/odd.npy[152]", "values outside [0, 1], or not finite")


def npy_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz_bytes(save=np.savez, **arrays):
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def zip_of_text():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme.txt", "not an array")
    return file.getvalue()


REFUSED = [
    ("object.npy", npy_bytes(np.array([{}, 1], object)), "Python objects"),
    ("object.npz", npz_bytes(x=np.array([{}, 1], object)), "Python objects"),
    ("packed.npz", npz_bytes(np.savez_compressed, x=np.array([{}, 1], object)), "Object arrays cannot be loaded"),
    ("text.npy", b"this is text", "cannot be read as a NumPy array: the magic string"),
    ("text.npz", zip_of_text(), "cannot be read as a NumPy array: the magic string"),
    ("empty.npy", b"", "cannot be read as a NumPy array"),
    ("cut.npy", npy_bytes(RAMP)[:-100], "cannot be read as a NumPy array"),
    ("cut head.npy", npy_bytes(RAMP)[:40], "cannot be read as a NumPy array"),
    ("cut.npz", npz_bytes(x=RAMP)[:-100], "cannot be read as a NumPy array"),
    ("flat.npy", npy_bytes(np.zeros((5, 64), np.uint8)), r"shape \(5, 64\); expected \(N, H, W, C\)"),
    ("first.npy", npy_bytes(np.zeros((5, 3, 8, 8), np.uint8)), r"shape \(5, 3, 8, 8\);.* channels come last"),
    ("two.npy", npy_bytes(np.zeros((5, 8, 8, 2), np.uint8)), r"with C 1, 3 or 4"),
    ("none.npy", npy_bytes(np.zeros((0, 8, 8, 3), np.uint8)), "holds no images"),
    ("long.npy", npy_bytes(RAMP.astype(np.int64)), r"type int64; expected uint8 .*astype\(np.uint8\)"),
    ("bool.npy", npy_bytes(RAMP > 9), "type bool; expected uint8"),
    ("text values.npy", npy_bytes(RAMP.astype(str)), "expected uint8"),
    ("to 255.npy", npy_bytes(RAMP.astype(np.float32)), r"values from 0 to 255; expected \[0, 1\] or \[-1, 1\]"),
    ("nan.npy", npy_bytes(np.full((5, 8, 8, 1), np.nan)), "none of the 5 images .* finite"),
    ("which.npz", npz_bytes(x_train=RAMP, x_test=RAMP), "found the arrays x_test, x_train; expected a single one"),
    ("bare.npz", npz_bytes(labels=np.arange(3)), "found the arrays labels; expected"),
    ("short.npz", npz_bytes(x=RAMP, labels=np.arange(2)), r"labels of shape \(2,\) .* each of 3 images"),
    ("real.npz", npz_bytes(x=RAMP, labels=np.ones(3)), "labels .* type float64; expected one integer"),
    ("huge.npz", npz_bytes(x=RAMP, labels=np.array([0, 1, 2**40])), "expected values of int32"),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_arrays_that_cannot_be_used(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        opened(tmp_path / name)
    assert str(caught.value).startswith(f"--data {tmp_path / name}: ") and "\n" not in str(caught.value)
