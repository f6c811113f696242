"""What --data can name, what it yields, and how each kind of bad input is refused."""

import io
import os
import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.data import BadImage, open_source
from hvdgan.data.opening import EXPECTED


def opened(data, **changes):
    return open_source(Config(data=str(data), **{"image_size": 8, **changes}))


def write_image(path, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), value).save(path)


def all_images(source):
    return source.fetch_batch(np.arange(len(source)))


# digits and synthetic


def test_digits_are_the_scans_with_their_labels():
    source = opened("digits")
    scans = load_digits()
    assert (len(source), source.channels, source.bad_files) == (1797, 1, [])
    np.testing.assert_array_equal(all_images(source)[..., 0], np.rint(scans.images * 255 / 16))
    np.testing.assert_array_equal(source.labels, scans.target)
    assert source.labels.dtype == np.int32


@pytest.mark.parametrize("image_size", [9, 32, 65])
def test_digits_grow_and_take_colour(image_size):
    source = opened("digits", image_size=image_size, channels=3)
    image = source.fetch(5)
    assert (image.shape, image.dtype) == ((image_size, image_size, 3), np.uint8)
    assert (image == image[..., :1]).all()
    assert abs(image.mean() - opened("digits").fetch(5).mean()) < 8


@pytest.mark.parametrize(("image_size", "channels"), [(32, None), (17, 1), (1, 3)])
def test_synthetic_images(image_size, channels):
    source = opened("synthetic", image_size=image_size, channels=channels)
    images = all_images(source)
    assert images.shape == (1024, image_size, image_size, channels or 3) and images.dtype == np.uint8
    np.testing.assert_array_equal(images, all_images(opened("synthetic", image_size=image_size, channels=channels)))
    np.testing.assert_array_equal(source.fetch(1000), images[1000])


def test_synthetic_images_differ_and_are_smooth():
    images = all_images(opened("synthetic", image_size=32))
    assert len(np.unique(images.reshape(1024, -1), axis=0)) == 1024
    steps = np.diff(images.astype(int), axis=1, append=images[:, :1])  # across the edge too
    assert abs(steps).max() < 100 and images.std() > 40


# folders


def test_a_folder_is_searched_in_the_order_of_its_paths(tmp_path):
    names = ["b.PNG", "a/z.jpg", "a b/ü.bmp", "A.Gif", "a/deep/er/x.jpeg", "c.webp"]
    for name in names:
        write_image(tmp_path / name, value=10 * sorted(names).index(name))
    for ignored in ["notes.txt", "no_suffix", ".hidden.png", ".cache/in.png", "png"]:
        write_image(tmp_path / "any.png")
        (tmp_path / ignored).parent.mkdir(exist_ok=True)
        shutil.move(tmp_path / "any.png", tmp_path / ignored)
    source = opened(tmp_path, channels=1)
    assert (len(source), source.bad_files, source.labels) == (6, [], None)
    np.testing.assert_allclose([source.fetch(index).mean() for index in range(6)], np.arange(0, 60, 10), atol=2)


def test_linked_folders_are_followed_once_and_never_round_in_circles(tmp_path):
    data = tmp_path / "data"
    write_image(data / "own" / "a.png", 1)
    write_image(tmp_path / "elsewhere" / "b.png", 2)
    (data / "link").symlink_to(tmp_path / "elsewhere")
    (data / "second link").symlink_to(tmp_path / "elsewhere")
    (data / "own" / "up").symlink_to(data)
    (tmp_path / "elsewhere" / "self").symlink_to(".")
    source = opened(data, channels=1)
    assert [source.fetch(index).mean() for index in range(len(source))] == [2, 1]  # link/b.png, own/a.png


def test_names_that_are_no_utf_8(tmp_path):
    folder = os.fsencode(tmp_path)
    for name, content in ((b"\xff.png", b"broken"), (b"line\nbreak.png", b"broken too")):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    write_image(tmp_path / "good.png", 7)
    os.rename(tmp_path / "good.png", os.path.join(folder, b"good\xfe.png"))
    source = opened(tmp_path, max_bad_fraction=1.0)
    assert [bad.name for bad in source.bad_files] == ["line\\nbreak.png", "\\udcff.png"]
    assert source.fetch(0).max() == 7 and len(source.fingerprint) == 64


def test_broken_files_are_listed_and_skipped(tmp_path):
    for index in range(8):
        write_image(tmp_path / f"{index}.png", index)
    (tmp_path / "3.png").write_bytes(b"")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "text.jpg").write_text("text")
    source = opened(tmp_path, channels=1, max_bad_fraction=2 / 9)
    assert source.bad_files == [("3.png", "empty file"), ("sub/text.jpg", "not a PNG, JPEG, WebP, BMP or GIF image")]
    assert [source.fetch(index).max() for index in range(len(source))] == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize(("bad", "allowed"), [(29, True), (30, False)])
def test_the_fraction_of_broken_files_is_exact(tmp_path, bad, allowed):
    for index in range(100):
        (tmp_path / f"{index:02d}.png").write_bytes(b"")
    for index in range(bad, 100):
        write_image(tmp_path / f"{index:02d}.png")
    if allowed:
        assert len(opened(tmp_path, max_bad_fraction=0.29)) == 71
        return
    with pytest.raises(UserError) as caught:
        opened(tmp_path, max_bad_fraction=0.29)
    message = str(caught.value)
    assert message.startswith(f"--data {tmp_path}: 30 of 100 images cannot be read: 00.png (empty file), 01.png")
    assert "and 25 more" in message and "--max-bad-fraction (now 0.29)" in message and "\n" not in message


def test_a_folder_whose_images_are_all_broken(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"none of 1 images can be read; the first: a\.png: empty file"):
        opened(tmp_path, max_bad_fraction=1.0)


def test_a_folder_without_images(tmp_path):
    (tmp_path / "readme.txt").write_text("nothing here")
    with pytest.raises(UserError, match=r"no images .* \*\.png, \*\.jpg, \*\.jpeg, \*\.webp, \*\.bmp, \*\.gif"):
        opened(tmp_path)


# fingerprints


def test_fingerprints_tell_data_apart(tmp_path):
    folder, array = tmp_path / "folder", np.arange(4 * 8 * 8, dtype=np.uint8).reshape(4, 8, 8, 1)
    write_image(folder / "a.png")
    write_image(folder / "b.png")
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "b.npy", array + 1)
    np.savez(tmp_path / "c.npz", images=array, labels=np.arange(4))
    seen = [
        opened(tmp_path / "a.npy").fingerprint,
        opened(tmp_path / "a.npy", channels=3).fingerprint,
        opened(tmp_path / "a.npy", image_size=9).fingerprint,
        opened(tmp_path / "b.npy").fingerprint,
        opened(tmp_path / "c.npz").fingerprint,
        opened("digits").fingerprint,
        opened("synthetic").fingerprint,
        opened(folder).fingerprint,
    ]
    shutil.copytree(folder, tmp_path / "copy")
    assert opened(tmp_path / "copy").fingerprint == seen[-1]
    (folder / "b.png").rename(folder / "c.png")
    seen.append(opened(folder).fingerprint)
    with open(folder / "c.png", "ab") as file:
        file.write(b" ")
    seen.append(opened(folder).fingerprint)
    assert len(set(seen)) == len(seen)


# arrays

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
    assert isinstance(source._array, np.memmap) == (way != "compressed")


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


def test_a_large_compressed_file_is_said_to_stay_in_memory(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("hvdgan.data.sources.arrays._NOTE_BYTES", 100)
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
    ("nan.npy", npy_bytes(np.full((5, 8, 8, 1), np.nan)), "none of 5 images .* finite"),
    ("which.npz", npz_bytes(x_train=RAMP, x_test=RAMP), "found the arrays x_test, x_train; expected a single one"),
    ("bare.npz", npz_bytes(labels=np.arange(3)), "found the arrays labels; expected"),
    ("short.npz", npz_bytes(x=RAMP, labels=np.arange(2)), r"labels of shape \(2,\) .* each of 3 images"),
    ("real.npz", npz_bytes(x=RAMP, labels=np.ones(3)), "labels .* type float64; expected one integer"),
    ("huge.npz", npz_bytes(x=RAMP, labels=np.array([0, 1, 2**40])), "fits into int32"),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_arrays_that_cannot_be_used(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        opened(tmp_path / name)
    assert str(caught.value).startswith(f"--data {tmp_path / name}: ") and "\n" not in str(caught.value)


def test_words_and_paths_that_name_nothing(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"")
    expected = f"expected {EXPECTED}"
    for data, problem in [
        (tmp_path / "nowhere", "no such file or folder"),
        (tmp_path / "gone.npy", "no such file or folder"),
        ("Digits", "no such file or folder"),
        (tmp_path / "picture.png", "of no known kind"),
        ("x" * 5000, "File name too long"),
    ]:
        with pytest.raises(UserError) as caught:
            opened(data)
        assert str(caught.value) == f"--data {data}: {problem}; {expected}"


def test_digits_do_not_shrink():
    with pytest.raises(UserError, match=r"--image-size 7: the digits have 8 x 8 pixels; expected 8 or more"):
        opened("digits", image_size=7)
