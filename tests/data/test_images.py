"""An image file of any kind becomes the right pixels, or a BadImage with the reason."""

import os

import numpy as np
import pytest
from PIL import Image

from hvdgan.data import BadImage
from hvdgan.data.formats.images import check_header, read_image
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

SIZE = 32
# file name, image, options of save, colour expected on the left, on the right
CONVERTED = [
    ("rgb.png", RED_BLUE, {}, RED, BLUE),
    ("grey.png", grey_halves(50, 200), {}, (50,) * 3, (200,) * 3),
    ("black and white.png", grey_halves(0, 255).convert("1"), {}, (0,) * 3, WHITE),
    ("grey of 16 bits.png", grey_halves(50 * 257, 200 * 257, np.uint16), {}, (50,) * 3, (200,) * 3),
    ("grey and alpha.png", grey_and_alpha(), {}, (50,) * 3, WHITE),
    ("rgba.png", halves((*RED, 255), (0, 0, 0, 0)), {}, RED, WHITE),
    ("half transparent.png", halves((*BLUE, 255), (*RED, 128)), {}, BLUE, PINK),
    ("palette.png", RED_BLUE.convert("P", palette=Image.Palette.ADAPTIVE), {}, RED, BLUE),
    ("palette, transparent.png", palette_and_transparency(), {"transparency": 2}, RED, WHITE),
    ("palette, alpha.png", palette_and_transparency(), {"transparency": b"\xff\x80\x00"}, PINK, WHITE),
    ("one colour transparent.png", RED_BLUE, {"transparency": BLUE}, RED, WHITE),
    ("baseline.jpg", RED_BLUE, {"quality": 95, "subsampling": 0}, RED, BLUE),
    ("progressive.JPEG", RED_BLUE, {"quality": 95, "subsampling": 0, "progressive": True}, RED, BLUE),
    ("cmyk.jpg", RED_BLUE.convert("CMYK"), {"quality": 95}, RED, BLUE),
    ("two pictures.jpg", RED_BLUE, {"format": "MPO", "quality": 95, "subsampling": 0, **ANIMATED}, RED, BLUE),
    ("lossy.webp", RED_BLUE, {"quality": 95}, RED, BLUE),
    ("alpha.WebP", halves((*RED, 255), (0, 0, 0, 0)), {"lossless": True}, RED, WHITE),
    ("moving.webp", RED_BLUE, {"lossless": True, **ANIMATED}, RED, BLUE),
    ("bitmap.bmp", RED_BLUE, {}, RED, BLUE),
    ("moving.gif", RED_BLUE, ANIMATED, RED, BLUE),
    ("gif, transparent.gif", palette_and_transparency(), {"transparency": 2}, RED, WHITE),
    ("really a png.jpg", RED_BLUE, {"format": "PNG"}, RED, BLUE),
    ("bilder für uns/größe.png", RED_BLUE, {}, RED, BLUE),
    ("small.png", halves(RED, BLUE, 14, 10), {}, RED, BLUE),
    ("tall.png", halves(RED, BLUE, 50, 300), {}, RED, BLUE),
    ("large.jpg", halves(RED, BLUE, 1501, 997), {"quality": 95}, RED, BLUE),
]


def saved(tmp_path, name, image, options):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    image.save(path, **options)
    return str(path)


def luma(colour):
    return np.dot(colour, [0.299, 0.587, 0.114])


@pytest.mark.parametrize(("name", "image", "options", "left", "right"), CONVERTED, ids=[row[0] for row in CONVERTED])
def test_kinds_of_files(tmp_path, name, image, options, left, right):
    path = saved(tmp_path, name, image, options)
    assert check_header(path, name).st_size == os.path.getsize(path)
    colour = read_image(path, name, SIZE, 3, "crop")
    grey = read_image(path, name, SIZE, 1, "crop")
    assert (colour.shape, colour.dtype) == ((SIZE, SIZE, 3), np.uint8)
    assert (grey.shape, grey.dtype) == ((SIZE, SIZE, 1), np.uint8)
    # Away from the middle, where the filter mixes, and with the tolerance of lossy compression.
    for part, expected in ((np.s_[:, :12], left), (np.s_[:, 20:], right)):
        np.testing.assert_allclose(colour[part], np.broadcast_to(expected, colour[part].shape), atol=6)
        np.testing.assert_allclose(grey[part], luma(expected), atol=6)


def test_colour_of_16_bits(tmp_path):
    (tmp_path / "deep.png").write_bytes(colour_png_of_16_bits())
    pixels = read_image(str(tmp_path / "deep.png"), "deep.png", SIZE, 3, "crop")
    assert (pixels[:, :12] == RED).all() and (pixels[:, 20:] == BLUE).all()


def test_grey_of_16_bits_is_rounded(tmp_path):
    values = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)
    Image.fromarray(values).save(tmp_path / "ramp.png")
    pixels = read_image(str(tmp_path / "ramp.png"), "ramp.png", 64, 1, "crop")
    np.testing.assert_array_equal(pixels[..., 0], np.floor(values / 257 + 0.5))


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
@pytest.mark.parametrize(
    ("orientation", "undo"),
    [
        (1, None),
        (2, Image.Transpose.FLIP_LEFT_RIGHT),
        (3, Image.Transpose.ROTATE_180),
        (4, Image.Transpose.FLIP_TOP_BOTTOM),
        (5, Image.Transpose.TRANSPOSE),
        (6, Image.Transpose.ROTATE_90),
        (7, Image.Transpose.TRANSVERSE),
        (8, Image.Transpose.ROTATE_270),
    ],
)
def test_exif_orientation(tmp_path, suffix, orientation, undo):
    upright = halves(RED, BLUE)
    upright.paste((0, 255, 0), (0, 0, 48, 12))  # green above tells the flips apart
    stored = upright if undo is None else upright.transpose(undo)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / f"turned.{suffix}", exif=exif, quality=95)
    pixels = read_image(str(tmp_path / f"turned.{suffix}"), "turned", SIZE, 3, "crop").astype(int)
    for part, expected in ((np.s_[:6], (0, 255, 0)), (np.s_[14:, :12], RED), (np.s_[14:, 20:], BLUE)):
        assert abs(pixels[part] - expected).max() < 40
        assert abs(pixels[part] - expected).mean() < 5


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("exif", [b"Exif\0\0no directory", b"Exif\0\0MM\0*no directory"])
@pytest.mark.parametrize("name", ["odd.jpg", "odd.png", "odd.webp"])
def test_damaged_exif_does_not_matter(tmp_path, name, exif):
    path = saved(tmp_path, name, halves(RED, RED), {"exif": exif})
    assert abs(read_image(path, name, SIZE, 3, "crop").astype(int) - RED).max() < 5


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 500), (500, 1), (2, 3), (33, 32)])
def test_odd_sizes(tmp_path, width, height):
    path = saved(tmp_path, "odd.png", Image.new("RGB", (width, height), PINK), {})
    assert (read_image(path, "odd.png", SIZE, 3, "crop") == PINK).all()


@pytest.mark.parametrize("turn", [False, True])
def test_the_crop_is_centred(tmp_path, turn):
    image = Image.new("RGB", (96, 32), (0, 255, 0))
    image.paste(halves(RED, BLUE, 32, 32), (32, 0))
    image = image.transpose(Image.Transpose.ROTATE_90) if turn else image
    path = saved(tmp_path, "wide.png", image, {})
    pixels = read_image(path, "wide.png", SIZE, 3, "crop")
    assert (pixels[..., 1] == 0).all() and pixels[..., 0].sum() == pixels[..., 2].sum() == 255 * SIZE * SIZE / 2


def test_an_image_of_the_right_size_is_not_touched(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    path = saved(tmp_path, "as is.png", Image.fromarray(pixels), {})
    np.testing.assert_array_equal(read_image(path, "as is.png", SIZE, 3, "crop"), pixels)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_shrinking_does_not_alias(tmp_path, suffix):
    # Bars of 4 pixels, 9 times finer than the result: dropping pixels would leave black and white.
    pixels = np.zeros((576, 576), np.uint8)
    pixels[:, np.arange(576) // 4 % 2 == 1] = 255
    path = saved(tmp_path, f"bars.{suffix}", Image.fromarray(pixels), {})
    result = read_image(path, "bars", 16, 1, "crop").astype(int)
    assert abs(result - 127).max() < 30


def noise(**options):
    """A file of noise, so large that its second half is image data."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)), options


@pytest.mark.parametrize("name", ["cut.png", "cut.jpg", "cut.bmp", "cut.gif"])
def test_truncated_files_have_a_header_but_no_pixels(tmp_path, name):
    image, options = noise()
    path = saved(tmp_path, name, image, options)
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) // 2)
    check_header(path, name)
    with pytest.raises(BadImage) as caught:
        read_image(path, name, SIZE, 3, "crop")
    assert caught.value.bad_file.name == name
    assert "truncated" in caught.value.bad_file.reason
    assert str(tmp_path) not in str(caught.value)


REFUSED = [
    ("nothing.png", b"", "empty file"),
    ("text.png", b"this is not an image", "not a PNG, JPEG, WebP, BMP or GIF image"),
    ("page.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a PNG"),
    ("head only.gif", b"GIF89a", "not a PNG"),
    ("bomb.png", png(30_000, 30_000, 8, 2), "pixels"),
    ("smaller bomb.png", png(12_000, 12_000, 8, 2), "12000 x 12000 pixels"),
]


@pytest.mark.parametrize(("name", "content", "reason"), REFUSED, ids=[row[0] for row in REFUSED])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_refused_by_the_header(tmp_path, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content)
    for read in (lambda: check_header(str(path), name), lambda: read_image(str(path), name, SIZE, 3, "crop")):
        with pytest.raises(BadImage) as caught:
            read()
        assert caught.value.bad_file.name == name
        assert str(tmp_path) not in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(BadImage, match=reason):
        check_header(str(path), name)


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "dangling.png").symlink_to("nowhere")
    with pytest.raises(BadImage, match="not a regular file"):
        check_header(str(tmp_path / "pipe.png"), "pipe.png")
    with pytest.raises(BadImage, match="No such file"):
        check_header(str(tmp_path / "dangling.png"), "dangling.png")
