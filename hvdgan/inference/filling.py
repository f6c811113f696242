"""Fills the holes of photographs with the networks of a recipe that has complete(), and blends the filling in."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image

from hvdgan.data import BadImage
from hvdgan.data.pixels import read_whole
from hvdgan.errors import UserError
from hvdgan.files.png import as_image
from hvdgan.inference.trained import TrainedNetworks
from hvdgan.recipe import recipe_errors
from hvdgan.recipe.layer_draws import LayerDraws
from hvdgan.recipe.sampling import SampleRandom
from hvdgan.settings.types import Blend, Weights

_ERODED = 3  # pixels by which OpenCV erodes a mask before it clones
_FADE = 16  # the seam fades over 1/16 of the window's short side


@dataclasses.dataclass(frozen=True)
class Window:
    """The part of a photograph that the network sees, resized to the network's image size; in pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, pixels: np.ndarray) -> np.ndarray:
        """A view of this part of an array (H, W, ...)."""
        return pixels[self.top : self.top + self.height, self.left : self.left + self.width]


@dataclasses.dataclass(frozen=True)
class Photo:
    """A photograph, its hole, and the part of it that the network sees."""

    pixels: np.ndarray  # (H, W, C) uint8, C 1 or 3 as in the file
    hole: np.ndarray  # (H, W) bool
    icc_profile: bytes | None  # colour profile of the file
    window: Window


def read_photo(image: Path, mask: Path, channels: int) -> Photo:
    """Read a photograph and its mask, which is white inside the hole, for a network of 1 or 3 channels."""
    pixels, icc_profile = _read("--image", image)
    white = _grey(_read("--mask", mask)[0])[..., 0]
    if white.shape != pixels.shape[:2]:
        sizes = [f"{shape[1]} x {shape[0]}" for shape in (white.shape, pixels.shape)]
        raise UserError(f"--mask {mask}: has {sizes[0]} pixels, and {image} has {sizes[1]}; expected the same")
    hole = white >= 128
    if hole.all() or not hole.any():
        found, kept = (
            ("all", "black where the photograph is to be kept") if hole.all() else ("none", "white where to fill")
        )
        raise UserError(f"--mask {mask}: {found} of it is white; expected {kept}")
    if channels == 1 and pixels.shape[-1] == 3 and (pixels != pixels[..., :1]).any():
        raise UserError(f"--image {image}: is in colour, and the run was trained on grey images; convert it to grey")
    return Photo(pixels, hole, icc_profile, window_around(hole))


def window_around(hole: np.ndarray) -> Window:
    """Choose the window: a square with the photograph's short side, centred on the hole as far as possible.

    If no such square contains the hole, the window is the whole photograph.
    """
    near, side = _around(hole, 0), min(hole.shape)
    if max(near.height, near.width) > side:
        return Window(0, 0, *hole.shape)
    top = min(max((2 * near.top + near.height - side) // 2, 0), hole.shape[0] - side)
    left = min(max((2 * near.left + near.width - side) // 2, 0), hole.shape[1] - side)
    return Window(top, left, side, side)


def fill(trained: TrainedNetworks, weights: Weights, photos: Sequence[Photo]) -> list[np.ndarray]:
    """Compute the completed window of each photograph, (image_size, image_size, channels) float32 in [-1, 1]."""
    spec, seen = trained.recipe.data, []
    for photo in photos:
        pixels = seen_by(spec.channels, photo.window.of(photo.pixels))
        seen.append(shrink(pixels, photo.window.of(photo.hole), spec.image_size))
    images, masks = (tf.constant(np.stack(parts)) for parts in zip(*seen, strict=True))
    complete = trained.recipe.complete
    wanted = f"it must return images {images.shape} in [-1, 1] for the images and masks it gets"
    random = SampleRandom(0, tf.range(len(images), dtype=tf.int64)).scoped("complete")
    with recipe_errors.of(trained.recipe), LayerDraws(random).in_use():
        filled = recipe_errors.call(complete, trained.nets(weights), images, masks, what="complete()", wanted=wanted)
        if getattr(filled, "shape", None) != images.shape:
            raise recipe_errors.Mistake(f"complete() returns {recipe_errors.described(filled)}; {wanted}", complete)
    return list(np.asarray(filled))


def seen_by(channels: int, pixels: np.ndarray) -> np.ndarray:
    """Pixels (H, W, 1 or 3) of a photograph with the channels of a network."""
    # read_photo() has refused colours if the network is grey, so the first channel is all of them.
    return pixels[..., :1] if channels == 1 else np.broadcast_to(pixels, (*pixels.shape[:2], 3))


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


def blend_in(photo: Photo, filled: np.ndarray, blend: Blend) -> np.ndarray:
    """Put a completed window into its photograph's hole; returns (H, W, C) uint8 with the file's channels."""
    grown = grow(filled, photo.window)
    channels = photo.pixels.shape[-1]
    if channels == 1 and grown.shape[-1] == 3:
        grown = _grey(np.rint(grown).astype(np.uint8)).astype(np.float32)
    grown = np.broadcast_to(grown, (*grown.shape[:2], channels))
    pixels = photo.pixels.copy()
    photo.window.of(pixels)[:] = join(photo.window.of(photo.pixels), grown, photo.window.of(photo.hole), blend)
    return pixels


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
    """The bounding box of a hole with a margin."""
    rows, columns = (np.flatnonzero(hole.any(axis=axis)) for axis in (1, 0))
    top, left = max(int(rows[0]) - margin, 0), max(int(columns[0]) - margin, 0)
    bottom, right = (
        min(int(each[-1]) + 1 + margin, size) for each, size in zip((rows, columns), hole.shape, strict=True)
    )
    return Window(top, left, bottom - top, right - left)


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
    grown = _box_sum(np.pad(inside, frame), _ERODED)[..., 0] > 0
    box = _around(grown, 0)
    centre = (box.left + box.width // 2, box.top + box.height // 2)
    source, target = (
        np.pad(np.broadcast_to(each, (*hole.shape, 3)), frame, "edge").astype(np.uint8) for each in (source, target)
    )
    cloned = np.asarray(cv2.seamlessClone(source, target, grown.astype(np.uint8) * 255, centre, cv2.NORMAL_CLONE))
    return cloned[border:-border, border:-border, : filled.shape[-1]]


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


def _read(flag: str, path: Path) -> tuple[np.ndarray, bytes | None]:
    try:
        return read_whole(path, path.name)
    except BadImage as error:
        raise UserError(f"{flag} {path}: {error.bad_file.reason}") from error


def _grey(pixels: np.ndarray) -> np.ndarray:
    """Convert grey or RGB pixels to grey, (H, W, 1) uint8."""
    return pixels if pixels.shape[-1] == 1 else np.asarray(as_image(pixels).convert("L"))[..., None]
