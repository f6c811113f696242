import numpy as np
from PIL import Image

from hvdgan.samples import save_grid, to_uint8


def test_pixels_are_rounded_and_clipped():
    assert to_uint8(np.array([-2.0, -1.0, 0.0, 1.0, 2.0])).tolist() == [0, 0, 128, 255, 255]


def test_a_grid_holds_every_image_in_reading_order(tmp_path):
    images = np.stack([np.full((4, 4, 3), 10 * number, np.uint8) for number in range(5)])
    save_grid(tmp_path / "samples" / "grid.png", images)
    grid = np.asarray(Image.open(tmp_path / "samples" / "grid.png"))
    assert grid.shape == (2 * 4 + 2, 3 * 4 + 2 * 2, 3)
    firsts = [grid[6 * row, 6 * column, 0] for row in range(2) for column in range(3)]
    assert firsts == [0, 10, 20, 30, 40, 128]  # the last place is empty


def test_grey_images_make_a_grey_picture(tmp_path):
    save_grid(tmp_path / "grid.png", np.zeros((4, 8, 8, 1), np.uint8))
    assert Image.open(tmp_path / "grid.png").mode == "L"
