"""Fills the holes of photographs with the networks of a recipe that has complete()."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from hvdgan.cli.errors import UserError
from hvdgan.cli.files.pictures import picture
from hvdgan.data import BadImage
from hvdgan.data.pixels import read_whole
from hvdgan.inference.blending import Blend, Window, grow, join, shrink, window_around
from hvdgan.inference.trained import TrainedNetworks, Weights
from hvdgan.recipe import mistakes


@dataclasses.dataclass(frozen=True)
class Photo:
    """A photograph, its hole, and the part of it that the network sees.

    Args:
        pixels: (H, W, C) uint8, C 1 or 3 as in the file.
        hole: (H, W) bool.
        icc_profile: colour profile of the file, or None.
        window: part that the network sees.
    """

    pixels: np.ndarray
    hole: np.ndarray
    icc_profile: bytes | None
    window: Window


def read_photo(image: Path, mask: Path, channels: int) -> Photo:
    """Read a photograph and its mask, which is white inside the hole.

    Args:
        image: file of the photograph.
        mask: file of the mask.
        channels: number of channels of the network, 1 or 3.

    Raises:
        UserError: a file cannot be read, or cannot be used.
    """
    pixels, icc_profile = _read("--image", image)
    white = _grey(_read("--mask", mask)[0])[..., 0]
    if white.shape != pixels.shape[:2]:
        sizes = [f"{shape[1]} x {shape[0]}" for shape in (white.shape, pixels.shape)]
        raise UserError(f"--mask {mask}: has {sizes[0]} pixels, and {image} has {sizes[1]}; expected the same")
    hole = white >= 128
    if not hole.any():
        raise UserError(f"--mask {mask}: nothing in it is white; expected white where to fill")
    if hole.all():
        raise UserError(f"--mask {mask}: all of it is white; expected black where the photograph is to be kept")
    if channels == 1 and pixels.shape[-1] == 3 and (pixels != pixels[..., :1]).any():
        raise UserError(f"--image {image}: is in colour, and the run was trained on grey images; convert it to grey")
    return Photo(pixels, hole, icc_profile, window_around(hole))


def _read(flag: str, path: Path) -> tuple[np.ndarray, bytes | None]:
    try:
        return read_whole(str(path), path.name)
    except BadImage as error:
        raise UserError(f"{flag} {path}: {error.bad_file.reason}") from error


def fill(trained: TrainedNetworks, weights: Weights, photos: Sequence[Photo]) -> list[np.ndarray]:
    """Compute the completed window of each photograph, (image_size, image_size, channels) float32 in [-1, 1]."""
    spec = trained.recipe.data
    seen = []
    for photo in photos:
        pixels = photo.window.of(photo.pixels)
        # read_photo() has refused colours if the network is grey, so the first channel is all of them.
        pixels = pixels[..., :1] if spec.channels == 1 else np.broadcast_to(pixels, (*pixels.shape[:2], 3))
        seen.append(shrink(pixels, photo.window.of(photo.hole), spec.image_size))
    images, masks = (tf.constant(np.stack(parts)) for parts in zip(*seen, strict=True))
    complete = trained.recipe.complete
    wanted = f"it must return images {images.shape} in [-1, 1] for the images and masks it gets"
    with mistakes.of(trained.recipe):
        filled = mistakes.call(complete, trained.nets(weights), images, masks, what="complete()", wanted=wanted)
        if getattr(filled, "shape", None) != images.shape:
            raise mistakes.Mistake(f"complete() returns {mistakes.described(filled)}; {wanted}", complete)
    return list(np.asarray(filled))


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


def _grey(pixels: np.ndarray) -> np.ndarray:
    """Convert grey or RGB pixels to grey, (H, W, 1) uint8."""
    return pixels if pixels.shape[-1] == 1 else np.asarray(picture(pixels).convert("L"))[..., None]
