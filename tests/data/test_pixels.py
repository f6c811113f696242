"""A picture file becomes the right pixels: bits, orientation, --fit, filter; test_file_kinds.py has the kinds."""

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.errors import UserError
from hvdgan.data.pixels import read_image, to_pixels
from images_on_disk import BLUE, RED, halves
from reading import opened

GREEN = (0, 255, 0)


def read(path, size=32, channels=3, fit="crop"):
    return read_image(path.name, path.read_bytes(), size, channels, fit)


@pytest.mark.parametrize("name", ["ramp.png", "big-endian.tiff"])
def test_grey_of_16_bits_is_rounded(tmp_path, name):
    values = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)
    image = Image.fromarray(values)
    if name.startswith("big"):
        image = Image.frombytes("I;16B", (64, 64), values.astype(">u2").tobytes())
    image.save(tmp_path / name)
    np.testing.assert_array_equal(read(tmp_path / name, 64, 1)[..., 0], np.floor(values / 257 + 0.5))


@pytest.mark.parametrize(("orientation", "undo"), [*enumerate([None, 0, 3, 1, 5, 2, 6, 4], 1)])
def test_exif_orientation(tmp_path, orientation, undo):
    """The numbers are those of Image.Transpose."""
    upright = halves(RED, BLUE)
    upright.paste(GREEN, (0, 0, 48, 12))  # above, which tells the flips apart
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = upright if undo is None else upright.transpose(Image.Transpose(undo))
    stored.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    pixels = read(tmp_path / "turned.jpg").astype(int)
    for part, expected in ((np.s_[:6], GREEN), (np.s_[14:, :12], RED), (np.s_[14:, 20:], BLUE)):
        assert abs(pixels[part] - expected).max() < 40
        assert abs(pixels[part] - expected).mean() < 5
    # Without --fit the aspect ratio is that of the upright picture.
    assert read(tmp_path / "turned.jpg", (40, 48), fit=None).shape == (40, 48, 3)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_shrinking_does_not_alias(tmp_path, suffix):
    # Bars of 4 pixels, 9 times finer than the result: dropping pixels would leave black and white.
    pixels = np.zeros((576, 576), np.uint8)
    pixels[:, np.arange(576) // 4 % 2 == 1] = 255
    Image.fromarray(pixels).save(tmp_path / f"bars.{suffix}")
    assert abs(read(tmp_path / f"bars.{suffix}", 16, 1).astype(int) - 127).max() < 30


def striped(width, height):
    """Green, with a red first quarter and a red last quarter of the width."""
    pixels = np.full((height, width, 3), GREEN, np.uint8)
    pixels[:, : width // 4] = pixels[:, -(width // 4) :] = RED
    return Image.fromarray(pixels)


def test_another_aspect_ratio_is_refused_unless_the_way_is_said(tmp_path):
    striped(64, 32).save(tmp_path / "0.png")
    with pytest.raises(UserError) as caught:
        opened(tmp_path, fit=None)
    said = "64 x 32 pixels, and 8 x 8 are wanted; say what to do with --fit crop, --fit pad or --fit stretch, or give"
    assert str(caught.value).startswith(f"--data {tmp_path}: 0.png has {said} --image-size HEIGHT,WIDTH, and --crop")
    crop, pad, stretch = (opened(tmp_path, fit=fit).fetch(0) for fit in ("crop", "pad", "stretch"))
    assert (crop == GREEN).all()  # the middle half
    assert (stretch[:, :2] == RED).mean() > 0.6 and (stretch[:, 3:5] == GREEN).all()
    assert (pad[:2] == 0).all() and (pad[-2:] == 0).all()  # black above and below
    np.testing.assert_array_equal(pad[2:6], opened(tmp_path, image_size=(4, 8), fit=None).fetch(0))
    assert len({opened(tmp_path, fit=fit).fingerprint for fit in ("crop", "pad", "stretch")}) == 3
    pixels = to_pixels(Image.fromarray(np.full((30, 10), 200, np.uint8)), 9, 1, "pad")
    assert pixels[..., 0].tolist() == [[0, 0, 0, 200, 200, 200, 0, 0, 0]] * 9
