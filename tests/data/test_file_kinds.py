"""A folder with files of every kind: each is read with its colours, or skipped by name with the reason."""

import os

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.config import Config
from hvdgan.data import BadImage, open_source
from images_on_disk import (
    ANIMATED,
    BLUE,
    PINK,
    RED,
    RED_BLUE,
    WHITE,
    colour_png_of_16_bits,
    grey_and_alpha,
    grey_halves,
    halves,
    palette_and_transparency,
    png,
)

SIZE = 16
JPEG = {"quality": 95, "subsampling": 0}


def turned():
    """Stored on its side, with the EXIF note that says so."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return {"image": RED_BLUE.transpose(Image.Transpose.ROTATE_90), "exif": exif, **JPEG}


def image(picture, **options):
    return lambda path: picture.copy().save(path, **options)  # Pillow keeps options of JPEG in the picture


def content(data):
    return lambda path: path.write_bytes(data)


def cut(path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path, **JPEG)
    os.truncate(path, path.stat().st_size // 2)


# name, how it is made, and the colours left and right
USED = [
    ("grey.png", image(grey_halves(50, 200)), (50,) * 3, (200,) * 3),
    ("grey and alpha.png", image(grey_and_alpha()), (50,) * 3, WHITE),
    ("rgb.png", image(RED_BLUE), RED, BLUE),
    ("rgba.png", image(halves((*BLUE, 255), (*RED, 128))), BLUE, PINK),
    ("black and white.png", image(grey_halves(0, 255).convert("1")), (0,) * 3, WHITE),
    ("palette.gif", image(RED_BLUE), RED, BLUE),
    ("palette, alpha.png", image(palette_and_transparency(), transparency=2), RED, WHITE),
    ("palette, alphas.png", image(palette_and_transparency(), transparency=b"\xff\x80\x00"), PINK, WHITE),
    ("one colour transparent.png", image(RED_BLUE, transparency=BLUE), RED, WHITE),
    ("alpha.WebP", image(halves((*RED, 255), (0, 0, 0, 0)), lossless=True), RED, WHITE),
    ("bitmap.bmp", image(RED_BLUE), RED, BLUE),
    ("scan.tif", image(RED_BLUE), RED, BLUE),
    ("scan of 16 bits.TIFF", image(grey_halves(50 * 257, 200 * 257, np.uint16)), (50,) * 3, (200,) * 3),
    ("really a png.jpg", image(RED_BLUE, format="PNG"), RED, BLUE),
    ("two pictures.jpg", image(RED_BLUE, format="MPO", **JPEG, **ANIMATED), RED, BLUE),
    ("cmyk.jpg", image(RED_BLUE.convert("CMYK"), quality=95), RED, BLUE),
    ("grey of 16 bits.png", image(grey_halves(50 * 257, 200 * 257, np.uint16)), (50,) * 3, (200,) * 3),
    ("colour of 16 bits.png", content(colour_png_of_16_bits()), RED, BLUE),
    ("turned.jpg", lambda path: (given := turned()).pop("image").save(path, **given), RED, BLUE),
    ("progressive.jpg", image(RED_BLUE, progressive=True, **JPEG), RED, BLUE),
    ("one pixel.png", image(Image.new("RGB", (1, 1), PINK)), PINK, PINK),
    ("moving.gif", image(RED_BLUE, **ANIMATED), RED, BLUE),
    ("über uns/größe  %20 ☃.png", image(RED_BLUE), RED, BLUE),
    ("a folder.png/inside.png", image(RED_BLUE), RED, BLUE),
    ("linked.png", lambda path: path.symlink_to("rgb.png"), RED, BLUE),
]
# name, how it is made, and the reason given
SKIPPED = [
    ("truncated.jpg", cut, "truncated"),
    ("nothing.png", content(b""), "empty file"),
    ("text.png", content(b"this is no image"), "not a PNG, JPEG, WebP, BMP, GIF or TIFF image"),
    ("stack.tif", image(RED_BLUE, save_all=True, append_images=[halves(BLUE, RED)]), "a stack of 2 pages"),
    ("bomb.png", content(png(12_000, 12_000, 8, 2)), "12000 x 12000 pixels, more than"),
    ("dangling.png", lambda path: path.symlink_to("nowhere"), "No such file or directory"),
]


@pytest.fixture
def folder(tmp_path):
    """All of them, and links to folders that go round in circles."""
    data = tmp_path / "data"
    for name, make, *_ in (*USED, *SKIPPED):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        make(data / name)
    (data / "über uns" / "zurück").symlink_to("..")
    (data / "self").symlink_to(".")
    return data


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_each_kind_is_used_with_its_colours_or_skipped_with_the_reason(folder):
    source = open_source(Config(data=str(folder), image_size=SIZE, fit="crop", max_bad_fraction=1.0))
    images, reasons = {}, {}
    for index in range(len(source)):
        try:
            images[source.key(index).decode()] = source.fetch(index).astype(int)
        except BadImage as bad:
            reasons[bad.bad_file.name] = bad.bad_file.reason
    assert images.keys() == {name for name, *_ in USED}
    for name, _, left, right in USED:
        # Away from the middle, where the filter mixes, and with the tolerance of lossy compression.
        assert abs(images[name][:, :6] - left).max() <= 8 and abs(images[name][:, 10:] - right).max() <= 8, name
    assert reasons.keys() == {name for name, *_ in SKIPPED}
    for name, _, reason in SKIPPED:
        assert reason in reasons[name]
