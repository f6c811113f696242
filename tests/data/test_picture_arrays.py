"""uint8 arrays of pictures in .npy and .npz files. Modules: data.pixels"""

from pathlib import Path

import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.data import open_source
from reading import all_images, opened

RAMP = np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3)
GREY = RAMP[..., :1]


@pytest.mark.parametrize(("array", "expected"), [(GREY[..., 0], GREY), (np.asfortranarray(RAMP), RAMP)])
def test_pictures_are_kept_to_the_bit(tmp_path, array, expected):
    np.save(tmp_path / "an array.npy", array)
    np.savez_compressed(tmp_path / "an array.npz", pictures=array)
    for path in (tmp_path / "an array.npy", tmp_path / "an array.npz"):
        source = opened(path)
        assert (len(source), source.layout.shape[-1], source.is_pictures) == (3, expected.shape[-1], True)
        np.testing.assert_array_equal(all_images(source), expected)
        assert (str(path) in Path("/proc/self/maps").read_text()) == (path.suffix == ".npy")


def test_arrays_are_cropped_resized_and_recoloured(tmp_path):
    array = np.zeros((2, 16, 32, 3), np.uint8)
    array[:, :, 8:16, 0] = array[:, :, 16:24, 2] = 255
    np.save(tmp_path / "wide.npy", array)
    np.testing.assert_array_equal(all_images(opened(tmp_path / "wide.npy", image_size=None, fit=None)), array)
    with pytest.raises(UserError, match="each picture has 32 x 16 pixels, and 8 x 8 are wanted; say .* with --fit"):
        opened(tmp_path / "wide.npy", fit=None)
    colour = all_images(opened(tmp_path / "wide.npy")).astype(int)
    assert colour.shape == (2, 8, 8, 3)
    assert abs(colour[:, :, :3] - (255, 0, 0)).max() < 25 and abs(colour[:, :, 5:] - (0, 0, 255)).max() < 25


def test_pairs_of_pictures_of_two_sizes_stay_pictures(tmp_path, monkeypatch):
    """As for super-resolution."""
    monkeypatch.chdir(tmp_path)
    small = np.ascontiguousarray(RAMP[:, ::2, ::2])
    np.savez("set.npz", images=RAMP, inputs=small)
    source = open_source(Config(data="set.npz"), paired=True)
    assert source.is_pictures and (source.layout.shape, source.layout.input_shape) == ((8, 8, 3), (4, 4, 3))
    inputs, images = source.layout.split(all_images(source))
    np.testing.assert_array_equal(inputs, small)
    np.testing.assert_array_equal(images, RAMP)
    with pytest.raises(UserError, match="the images of set.npz have 8 x 8 pixels and the inputs 4 x 4"):
        open_source(Config(data="set.npz", image_size=16), paired=True)
