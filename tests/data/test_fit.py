"""Pictures of another aspect ratio are refused unless --fit says how they get it; squares have the bits they had.

Modules: data.pixels.
"""

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.errors import UserError
from hvdgan.data import BadImage
from hvdgan.data.pixels import read_image, to_pixels
from reading import opened

GREEN, RED = (0, 255, 0), (255, 0, 0)


def striped(width, height):
    """Green, with a red first quarter and a red last quarter of the width."""
    pixels = np.full((height, width, 3), GREEN, np.uint8)
    pixels[:, : width // 4] = pixels[:, -(width // 4) :] = RED
    return pixels


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(3):
        Image.fromarray(striped(64, 32)).save(tmp_path / "images" / f"{number}.png")
    return tmp_path / "images"


def refusal(width, height):
    return (
        f"{width} x {height} pixels, and 8 x 8 are wanted; say what to do with --fit crop, --fit pad or "
        "--fit stretch, or give --image-size HEIGHT,WIDTH, and --crop for a part of each"
    )


def test_a_folder_is_refused_with_the_first_picture(folder):
    with pytest.raises(UserError) as caught:
        opened(folder, fit=None)
    assert str(caught.value) == f"--data {folder}: 0.png has {refusal(64, 32)}"


def test_the_three_ways(folder):
    crop, pad, stretch = (opened(folder, fit=fit).fetch(0) for fit in ("crop", "pad", "stretch"))
    assert (crop == GREEN).all()  # the middle half
    assert (stretch[:, :2] == RED).mean() > 0.6 and (stretch[:, 3:5] == GREEN).all()
    assert (pad[:2] == 0).all() and (pad[-2:] == 0).all()  # black above and below
    np.testing.assert_array_equal(pad[2:6], opened(folder, image_size=(4, 8), fit=None).fetch(0))
    assert len({opened(folder, fit=fit).fingerprint for fit in ("crop", "pad", "stretch")}) == 3
    pixels = to_pixels(Image.fromarray(np.full((30, 10), 200, np.uint8)), 9, 1, "pad")
    assert pixels[..., 0].tolist() == [[0, 0, 0, 200, 200, 200, 0, 0, 0]] * 9


@pytest.mark.parametrize("turned", [False, True])
def test_a_jpeg_that_is_decoded_at_a_fraction_keeps_its_aspect(tmp_path, turned):
    """An eighth of 1503 x 1002 is 188 x 126, which is not 3:2."""
    exif = Image.Exif()
    exif[0x0112] = 6 if turned else 1
    Image.fromarray(striped(1503, 1002)).save(tmp_path / "a.jpg", exif=exif, quality=90)
    size = (24, 16) if turned else (16, 24)
    pixels = read_image("a.jpg", (tmp_path / "a.jpg").read_bytes(), size, 3).astype(int)
    assert pixels.shape == (*size, 3)
    middle = pixels[9:15] if turned else pixels[:, 9:15]
    assert abs(middle - GREEN).max() < 60
    with pytest.raises(BadImage, match=f"{'1002 x 1503' if turned else '1503 x 1002'} pixels, and 16 x 16 are wanted"):
        read_image("a.jpg", (tmp_path / "a.jpg").read_bytes(), 16, 3)
