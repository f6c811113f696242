"""Pixels as images of Pillow, and as PNG files."""

import math
from pathlib import Path

import numpy as np
from PIL import Image

from hvdgan.files.replacing import whole_file

_FRAME = 2  # pixels between two images of a grid
_FRAME_GREY = 128


def as_image(pixels: np.ndarray) -> Image.Image:
    """Make an image of Pillow, which has no axis of channels if it is grey, of pixels (H, W, C) uint8, C 1 or 3."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def save_png(path: Path, pixels: np.ndarray, icc_profile: bytes | None = None) -> None:
    """Write one image, (H, W, C) uint8, C 1 or 3, with the colour profile of its pixels; None: sRGB."""
    as_image(pixels).save(path, icc_profile=icc_profile)


def save_grid(path: Path, images: np.ndarray) -> None:
    """Write images (N, H, W, C) uint8, C 1 or 3, in a grid as near to a square as their number allows."""
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    framed = np.full((rows * columns, height + _FRAME, width + _FRAME, channels), _FRAME_GREY, np.uint8)
    framed[:count, :height, :width] = images
    grid = framed.reshape(rows, columns, height + _FRAME, width + _FRAME, channels).transpose(0, 2, 1, 3, 4)
    grid = grid.reshape(rows * (height + _FRAME), columns * (width + _FRAME), channels)[:-_FRAME, :-_FRAME]
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        as_image(grid).save(partial)
