"""Pictures are decoded and encoded anew, within a size.

Modules: pages.pictures.
"""

import base64
import io

import numpy as np
from PIL import Image

from hvdgan.pages.pictures import load
from hvdgan.pages.reading.untrusted import Folder


def test_a_small_picture_keeps_every_pixel(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    picture = load(Folder(tmp_path), "a.png", 80_000)
    assert (picture.width, picture.height) == (60, 40) and str(picture.uri).startswith("data:image/png;")
    decoded = Image.open(io.BytesIO(base64.b64decode(str(picture.uri).partition(",")[2])))
    assert (np.asarray(decoded) == pixels).all()


def test_noise_that_cannot_be_compressed_stays_within_the_size(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (1200, 800, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    picture = load(Folder(tmp_path), "a.png", 80_000)
    assert len(str(picture.uri)) <= 80_000 * 4 / 3 + 100 and (picture.width, picture.height) == (800, 1200)


def test_a_picture_of_another_kind_or_of_too_many_pixels_is_named(tmp_path):
    Image.new("1", (9_000, 9_000)).save(tmp_path / "bomb.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "gif.png", format="GIF")
    folder = Folder(tmp_path)
    assert load(folder, "bomb.png", 80_000) is None and load(folder, "gif.png", 80_000) is None
    assert [remark.partition(" ")[0] for remark in folder.remarks] == ["bomb.png", "gif.png"]
    assert "9,000 x 9,000 pixels are too many" in folder.remarks[0]
