"""Selects the part of a photograph that a network sees, and blends the network's output into the photograph."""

import dataclasses
from typing import Literal

import numpy as np
from PIL import Image

from hvdgan.cli.errors import UserError

Blend = Literal["none", "feather", "poisson"]

_ERODED = 3  # pixels by which OpenCV erodes a mask before it clones
_FADE = 16  # the seam fades over 1/16 of the window's short side


@dataclasses.dataclass(frozen=True)
class Window:
    """The part of a photograph that the network sees, resized to the network's image size; all fields in pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, pixels: np.ndarray) -> np.ndarray:
        """Return a view of this part of an array (H, W, ...)."""
        return pixels[self.top : self.top + self.height, self.left : self.left + self.width]


def window_around(hole: np.ndarray) -> Window:
    """Choose the window: a square with the photograph's short side, centred on the hole as far as possible.

    If no such square contains the hole, the window is the whole photograph.
    """
    side = min(hole.shape)
    begins = []
    for axis, length in enumerate(hole.shape):
        places = np.flatnonzero(hole.any(axis=1 - axis))
        first, end = int(places[0]), int(places[-1]) + 1
        if end - first > side:
            return Window(0, 0, hole.shape[0], hole.shape[1])
        begins.append(min(max((first + end - side) // 2, 0), length - side))
    return Window(begins[0], begins[1], side, side)


def shrink(pixels: np.ndarray, hole: np.ndarray, image_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Resize a window for the network; pixels inside the hole have no influence on the result."""
    known = (~hole).astype(np.float32)
    size = (image_size, image_size)
    # The mean of the known pixels only: ordinary resampling would mix in the pixels inside the hole.
    weight = _resize(known, size, Image.Resampling.BILINEAR)[..., None]
    sums = [_resize(channel * known, size, Image.Resampling.BILINEAR) for channel in np.moveaxis(pixels, -1, 0)]
    mask = _resize(1.0 - known, size, Image.Resampling.BOX)[..., None] > 1e-6
    means = np.stack(sums, axis=-1) / np.maximum(weight, 1e-3)
    return np.where(mask, 0.0, means / 127.5 - 1.0).astype(np.float32), mask.astype(np.float32)


def grow(images: np.ndarray, window: Window) -> np.ndarray:
    """Resize the network's output to the size of the window, (H, W, C) float32 in [0, 255]."""
    size = (window.width, window.height)
    channels = [_resize(channel, size, Image.Resampling.BICUBIC) for channel in np.moveaxis(images, -1, 0)]
    return np.clip((np.stack(channels, axis=-1) + 1.0) * 127.5, 0.0, 255.0)


def join(photo: np.ndarray, filled: np.ndarray, hole: np.ndarray, blend: Blend) -> np.ndarray:
    """Fill the hole of a photograph; every pixel outside of the hole keeps its bits.

    Reference: Perez et al. 2003, ACM Transactions on Graphics 22(3), equation 4 (poisson).
    """
    radius = max(2, min(hole.shape) // _FADE)
    near = _around(hole, radius + 2)
    parts = near.of(photo), near.of(filled), near.of(hole)
    values = parts[1] if blend == "none" else _feather(*parts, radius)
    inner = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    if blend == "poisson":
        inner = _poisson(np.where(parts[2][..., None], inner, parts[0]), *parts[1:])
    joined = photo.copy()
    near.of(joined)[:] = np.where(parts[2][..., None], inner, parts[0])
    return joined


def _around(hole: np.ndarray, margin: int) -> Window:
    rows, columns = (np.flatnonzero(hole.any(axis=axis)) for axis in (1, 0))
    top, left = max(int(rows[0]) - margin, 0), max(int(columns[0]) - margin, 0)
    height, width = hole.shape
    return Window(
        top, left, min(int(rows[-1]) + 1 + margin, height) - top, min(int(columns[-1]) + 1 + margin, width) - left
    )


def _feather(photo: np.ndarray, filled: np.ndarray, hole: np.ndarray, radius: int) -> np.ndarray:
    outside = (~hole)[..., None].astype(np.float64)
    neighbours = _box_sum(outside, 1)
    edge = hole[..., None] & (neighbours > 0)  # pixels of the hole that touch the outside
    step = np.where(edge, _box_sum(photo * outside, 1) / np.maximum(neighbours, 1.0) - filled, 0.0)
    nearby = _box_sum(step, radius) / np.maximum(_box_sum(edge.astype(np.float64), radius), 1.0)
    # In the box around a pixel at a straight edge, `radius` rows are outside; `radius` pixels further in, none are.
    fade = np.clip(_box_sum(outside, radius) / (radius * (2 * radius + 1)), 0.0, 1.0)
    return filled + fade * np.where(edge, step, nearby)


def _poisson(target: np.ndarray, filled: np.ndarray, hole: np.ndarray) -> np.ndarray:
    """Clone the filling into the photograph with OpenCV; returns (H, W, C) uint8.

    OpenCV also reads the target inside the hole, near its edge and at the border of the picture, so the caller replaces
    these pixels by the feathered filling first.
    """
    try:
        import cv2
    except ImportError as error:
        raise UserError(
            "--blend poisson: needs OpenCV: pip install 'hvdgan[poisson]' or opencv-python-headless; or give "
            "--blend feather"
        ) from error
    inside = hole[..., None].astype(np.float64)
    # Beyond the edge, the filling is continued by the mean of its neighbours, so that there is no gradient at the edge.
    spread = _box_sum(filled * inside, 1) / np.maximum(_box_sum(inside, 1), 1.0)
    border = _ERODED + 2
    frame = ((border, border), (border, border), (0, 0))
    source = np.clip(np.rint(np.where(hole[..., None], filled, spread)), 0, 255).astype(np.uint8)
    grown = _box_sum(np.pad(inside, frame), _ERODED) > 0
    rows, columns = (np.flatnonzero(grown[..., 0].any(axis=axis)) for axis in (1, 0))
    centre = (int(columns[0] + (columns[-1] + 1 - columns[0]) // 2), int(rows[0] + (rows[-1] + 1 - rows[0]) // 2))
    source, target = (_rgb(np.pad(pixels, frame, "edge")) for pixels in (source, target))
    mask = np.ascontiguousarray(grown[..., 0].astype(np.uint8) * 255)
    cloned = cv2.seamlessClone(source, target, mask, centre, cv2.NORMAL_CLONE)
    return cloned[border:-border, border:-border, : filled.shape[-1]]


def _rgb(pixels: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def _box_sum(values: np.ndarray, radius: int) -> np.ndarray:
    """Sum over the (2 radius + 1)^2 pixels around each pixel, (H, W, C) float64; pixels outside of the array are 0."""
    for axis in (0, 1):
        length = values.shape[axis]
        sums = np.cumsum(values, axis=axis, dtype=np.float64)
        sums = np.concatenate([np.zeros_like(np.take(sums, [0], axis)), sums], axis)
        places = np.arange(length)
        ends, begins = np.minimum(places + radius + 1, length), np.maximum(places - radius, 0)
        values = np.take(sums, ends, axis) - np.take(sums, begins, axis)
    return values


def _resize(channel: np.ndarray, size: tuple[int, int], resample: Image.Resampling) -> np.ndarray:
    """Resize one channel (H, W) float32 to (width, height)."""
    return np.asarray(Image.fromarray(np.ascontiguousarray(channel, np.float32)).resize(size, resample))
