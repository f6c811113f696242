"""Pictures in files of every kind: each is read with its colours, or skipped by name with the reason.

Bits, orientation, --fit and filter give the right pixels. Modules: data.pixels"""

import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from hvdgan.data import BadImage, open_source
from hvdgan.data.pixels import read_image, to_pixels
from hvdgan.errors import UserError
from hvdgan.settings.config import Config
from reading import opened

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
WHITE, PINK = (255, 255, 255), (255, 127, 127)
SIZE = 16
JPEG = {"quality": 95, "subsampling": 0}


def halves(left, right, width=48, height=40):
    """An RGB or RGBA image whose left half has one colour and whose right half another."""
    pixels = np.empty((height, width, len(left)), np.uint8)
    pixels[:, : width // 2], pixels[:, width // 2 :] = left, right
    return Image.fromarray(pixels)


def grey_halves(left, right, dtype=np.uint8):
    pixels = np.full((40, 48), left, dtype)
    pixels[:, 24:] = right
    return Image.fromarray(pixels)


def grey_and_alpha():
    grey = grey_halves(50, 200)
    grey.putalpha(grey_halves(255, 0))
    return grey


def palette_and_transparency():
    image = Image.new("P", (48, 40), 1)
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 0, 255])
    image.paste(2, (24, 0, 48, 40))
    return image


def png(width, height, bit_depth, colour_type, rows=b""):
    """A PNG as Pillow does not write them."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def colour_png_of_16_bits():
    row = b"\0" + struct.pack(">3H", 65535, 0, 0) * 24 + struct.pack(">3H", 0, 0, 65535) * 24
    return png(48, 40, 16, 2, row * 40)


RED_BLUE = halves(RED, BLUE)


def texts():
    """What programs that make pictures store with them, with or without compression."""
    found = PngImagePlugin.PngInfo()
    for zipped in (True, False):
        found.add_text("workflow", "x" * 2_000_000, zip=zipped)
    return found


ANIMATED = {"save_all": True, "append_images": [halves(GREEN, GREEN)]}


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
    ("one colour transparent.png", image(RED_BLUE, transparency=BLUE), RED, WHITE),
    ("alpha.WebP", image(halves((*RED, 255), (0, 0, 0, 0)), lossless=True), RED, WHITE),
    ("scan.tif", image(RED_BLUE), RED, BLUE),
    ("scan of 16 bits.TIFF", image(grey_halves(50 * 257, 200 * 257, np.uint16)), (50,) * 3, (200,) * 3),
    ("really a png.jpg", image(RED_BLUE, format="PNG"), RED, BLUE),
    ("two pictures.jpg", image(RED_BLUE, format="MPO", **JPEG, **ANIMATED), RED, BLUE),
    ("cmyk.jpg", image(RED_BLUE.convert("CMYK"), quality=95), RED, BLUE),
    ("grey of 16 bits.png", image(grey_halves(50 * 257, 200 * 257, np.uint16)), (50,) * 3, (200,) * 3),
    ("colour of 16 bits.png", content(colour_png_of_16_bits()), RED, BLUE),
    ("turned.jpg", lambda path: (given := turned()).pop("image").save(path, **given), RED, BLUE),
    ("texts.png", image(RED_BLUE, pnginfo=texts()), RED, BLUE),
    ("profile.png", image(RED_BLUE, icc_profile=bytes(2_000_000)), RED, BLUE),
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
            images[source.key(index).decode()] = source.fetch(index)["images"].astype(int)
        except BadImage as bad:
            reasons[bad.bad_file.name] = bad.bad_file.reason
    assert images.keys() == {name for name, *_ in USED}
    for name, _, left, right in USED:
        # Away from the middle, where the filter mixes, and with the tolerance of lossy compression.
        assert abs(images[name][:, :6] - left).max() <= 8 and abs(images[name][:, 10:] - right).max() <= 8, name
    assert reasons.keys() == {name for name, *_ in SKIPPED}
    for name, _, reason in SKIPPED:
        assert reason in reasons[name]


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
    crop, pad, stretch = (opened(tmp_path, fit=fit).fetch(0)["images"] for fit in ("crop", "pad", "stretch"))
    assert (crop == GREEN).all()  # the middle half
    assert (stretch[:, :2] == RED).mean() > 0.6 and (stretch[:, 3:5] == GREEN).all()
    assert (pad[:2] == 0).all() and (pad[-2:] == 0).all()  # black above and below
    np.testing.assert_array_equal(pad[2:6], opened(tmp_path, image_size=(4, 8), fit=None).fetch(0)["images"])
    assert len({opened(tmp_path, fit=fit).fingerprint for fit in ("crop", "pad", "stretch")}) == 3
    pixels = to_pixels(Image.fromarray(np.full((30, 10), 200, np.uint8)), 9, 1, "pad")
    assert pixels[..., 0].tolist() == [[0, 0, 0, 200, 200, 200, 0, 0, 0]] * 9
