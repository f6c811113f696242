""".npy files, mapped to memory, .npz archives, and folders of .npy: names, bad files, and arrays of pictures.
Modules: data.store, data.pixels"""

import os
from pathlib import Path

import numpy as np
import pytest

from arrays_on_disk import arrays
from hvdgan.data import open_source
from hvdgan.data.bad_files import BadImage
from hvdgan.data.numpy_files import open_numpy
from hvdgan.errors import UserError
from hvdgan.settings.config import Config
from reading import all_of, opened


@pytest.mark.parametrize(
    ("name", "message"),
    [("object.npy", "Python objects"), ("object.npz", "Object arrays cannot be loaded"), ("cut.npy", "")],
)
def test_damaged_files_are_named(tmp_path, name, message):
    path = tmp_path / name
    save = np.savez if name.endswith("npz") else np.save
    save(path, np.array([{}, 1], object) if name.startswith("object") else np.arange(100))
    if name == "cut.npy":
        os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(UserError, match=f"cannot be read as a NumPy array: .*{message}") as caught:
        container = open_numpy(str(path))
        container.get(container.names()[0])
    assert str(caught.value).startswith(f"--data {path}: ") and "\n" not in str(caught.value)


SAMPLES = np.random.default_rng(0).standard_normal((12, 4, 6, 2)).astype(np.float32)


def test_bad_files_are_found_when_they_are_read(tmp_path):
    """Of two classes of six files each; hidden files and others are no samples."""
    for number, sample in enumerate(SAMPLES):
        path = tmp_path / ("muon", "electron")[number % 2] / f"{number:02}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, sample)
    np.save(tmp_path / "muon" / ".hidden.npy", SAMPLES)
    (tmp_path / "muon" / "notes.txt").write_text("no array")
    np.save(tmp_path / "muon" / "00.npy", SAMPLES[0, :3])
    os.truncate(tmp_path / "electron" / "01.npy", 300)
    (tmp_path / "electron" / "03.npy").write_bytes(b"text")
    reasons = {
        "muon/00.npy": "shape (3, 6, 2), type float32; expected (4, 6, 2) and float32",
        "electron/01.npy": "no whole .npy file: ",
        "electron/03.npy": "no whole .npy file: ",
    }
    source = arrays(tmp_path)
    assert len(source) == 12 and source.labels.tolist() == [0] * 6 + [1] * 6
    for index, number in enumerate([*range(1, 12, 2), *range(0, 12, 2)]):  # the electrons' folder comes first
        if (name := source.named(index)) in reasons:
            with pytest.raises(BadImage) as caught:
                source.fetch(index)
            assert caught.value.bad_file.name == name and caught.value.bad_file.reason.startswith(reasons[name])
        else:
            np.testing.assert_array_equal(source.fetch(index)["images"], SAMPLES[number])
    for path in tmp_path.rglob("[0-9]*.npy"):
        path.write_bytes(b"text")
    with pytest.raises(UserError, match="none of the .npy files looked at can be used, such as .*npy: no whole .npy"):
        arrays(tmp_path)


RAMP = np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3)
GREY = RAMP[..., :1]


@pytest.mark.parametrize(("array", "expected"), [(GREY[..., 0], GREY), (np.asfortranarray(RAMP), RAMP)])
def test_pictures_are_kept_to_the_bit(tmp_path, array, expected):
    np.save(tmp_path / "an array.npy", array)
    np.savez_compressed(tmp_path / "an array.npz", pictures=array)
    for path in (tmp_path / "an array.npy", tmp_path / "an array.npz"):
        source = opened(path)
        assert (len(source), source.layout.shape[-1], source.is_pictures) == (3, expected.shape[-1], True)
        np.testing.assert_array_equal(all_of(source), expected)
        assert (str(path) in Path("/proc/self/maps").read_text()) == (path.suffix == ".npy")


def test_arrays_are_cropped_resized_and_recoloured(tmp_path):
    array = np.zeros((2, 16, 32, 3), np.uint8)
    array[:, :, 8:16, 0] = array[:, :, 16:24, 2] = 255
    np.save(tmp_path / "wide.npy", array)
    np.testing.assert_array_equal(all_of(opened(tmp_path / "wide.npy", image_size=None, fit=None)), array)
    with pytest.raises(UserError, match="each picture has 32 x 16 pixels, and 8 x 8 are wanted; say .* with --fit"):
        opened(tmp_path / "wide.npy", fit=None)
    colour = all_of(opened(tmp_path / "wide.npy")).astype(int)
    assert colour.shape == (2, 8, 8, 3)
    assert abs(colour[:, :, :3] - (255, 0, 0)).max() < 25 and abs(colour[:, :, 5:] - (0, 0, 255)).max() < 25


def test_pairs_of_pictures_of_two_sizes_stay_pictures(tmp_path, monkeypatch):
    """As for super-resolution."""
    monkeypatch.chdir(tmp_path)
    small = np.ascontiguousarray(RAMP[:, ::2, ::2])
    np.savez("set.npz", images=RAMP, inputs=small)
    source = open_source(Config(data="set.npz"), paired=True)
    assert source.is_pictures and (source.layout.shape, source.layout.input_shape) == ((8, 8, 3), (4, 4, 3))
    parts = source.fetch_batch(np.arange(len(source)))
    np.testing.assert_array_equal(parts["inputs"], small)
    np.testing.assert_array_equal(parts["images"], RAMP)
    with pytest.raises(UserError, match="the images of set.npz have 8 x 8 pixels and the inputs 4 x 4"):
        open_source(Config(data="set.npz", image_size=16), paired=True)
