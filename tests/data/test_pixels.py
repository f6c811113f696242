"""A picture file becomes the right pixels: bits, orientation, crop, filter; test_file_kinds.py has the kinds."""

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from hvdgan.data.pixels import read_image
from images_on_disk import BLUE, RED, halves

SIZE = 32


def read(path, size=SIZE, channels=3, fit="crop"):
    return read_image(path.name, path.read_bytes(), size, channels, fit)


@pytest.mark.parametrize("name", ["ramp.png", "big-endian.tiff"])
def test_grey_of_16_bits_is_rounded(tmp_path, name):
    values = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)
    image = Image.fromarray(values)
    if name.startswith("big"):
        image = Image.frombytes("I;16B", (64, 64), values.astype(">u2").tobytes())
    image.save(tmp_path / name)
    np.testing.assert_array_equal(read(tmp_path / name, 64, 1)[..., 0], np.floor(values / 257 + 0.5))


@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
def test_tiff_has_the_pixels_of_its_png(tmp_path, compression):
    for mode in ("RGB", "L", "RGBA", "P", "CMYK", "1"):
        image = halves(RED, BLUE, 40, 40).convert("RGB").convert(mode)
        image.save(tmp_path / "a.tif", compression=compression)
        (image.convert("RGB") if mode == "CMYK" else image).save(tmp_path / "a.png")
        np.testing.assert_array_equal(read(tmp_path / "a.tif"), read(tmp_path / "a.png"), err_msg=mode)


@pytest.mark.parametrize("suffix", ["jpg", "tif"])
@pytest.mark.parametrize(("orientation", "undo"), [*enumerate([None, 0, 3, 1, 5, 2, 6, 4], 1)])
def test_exif_orientation(tmp_path, suffix, orientation, undo):
    """The numbers are those of Image.Transpose."""
    upright = halves(RED, BLUE)
    upright.paste((0, 255, 0), (0, 0, 48, 12))  # green above tells the flips apart
    stored = upright if undo is None else upright.transpose(Image.Transpose(undo))
    exif = Image.Exif()
    exif[0x0112] = orientation
    noted = {"tiffinfo": TiffImagePlugin.ImageFileDirectory_v2()} if suffix == "tif" else {"exif": exif, "quality": 95}
    if suffix == "tif":
        noted["tiffinfo"][0x0112] = orientation
    stored.save(tmp_path / f"turned.{suffix}", **noted)
    pixels = read(tmp_path / f"turned.{suffix}").astype(int)
    for part, expected in ((np.s_[:6], (0, 255, 0)), (np.s_[14:, :12], RED), (np.s_[14:, 20:], BLUE)):
        assert abs(pixels[part] - expected).max() < 40
        assert abs(pixels[part] - expected).mean() < 5
    # Without --fit the aspect ratio is that of the upright picture.
    assert read(tmp_path / f"turned.{suffix}", (40, 48), fit=None).shape == (40, 48, 3)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_shrinking_does_not_alias(tmp_path, suffix):
    # Bars of 4 pixels, 9 times finer than the result: dropping pixels would leave black and white.
    pixels = np.zeros((576, 576), np.uint8)
    pixels[:, np.arange(576) // 4 % 2 == 1] = 255
    Image.fromarray(pixels).save(tmp_path / f"bars.{suffix}")
    assert abs(read(tmp_path / f"bars.{suffix}", 16, 1).astype(int) - 127).max() < 30
