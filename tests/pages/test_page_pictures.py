"""Pictures are decoded and encoded anew, within a size. Modules: pages.pictures"""

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
