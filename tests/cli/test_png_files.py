"""Arrays of pixels become images of Pillow and PNG files."""

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.files.pictures import picture, save_png

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_grey_and_colour_keep_their_values(tmp_path, channels, mode):
    pixels = PIXELS[..., :channels]
    assert (picture(pixels).mode, picture(pixels).size) == (mode, (5, 4))
    save_png(tmp_path / "a.png", pixels)
    with Image.open(tmp_path / "a.png") as read:
        np.testing.assert_array_equal(np.asarray(read).reshape(pixels.shape), pixels)
