"""The command: python -m hvdgan.complete, which fills holes of photographs with a trained completion network."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

# Before TensorFlow is loaded, as in hvdgan.train.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from cyclopts import Parameter
from PIL import Image

from hvdgan.cli import outputs
from hvdgan.cli.app import command
from hvdgan.cli.errors import UserError
from hvdgan.cli.types import Count
from hvdgan.data import BadImage
from hvdgan.data.blending import Blend, Window, grow, join, shrink, window_around
from hvdgan.data.formats.images import SUFFIXES, read_whole
from hvdgan.recipe import mistakes
from hvdgan.training.trained import Trained, Weights, load_trained

_HELP = """Fill holes of photographs with what a run of the recipe completion has learnt.

RUN_DIR is a run folder, whose newest checkpoint is used, or the folder of a checkpoint. Pixels outside of the hole keep
their bits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to fill; the fields are the flags."""

    image: Path
    """a photograph of any size, or a folder of them"""
    mask: Path
    """a picture of the same size, white where to fill; or a folder with one of the same name for each photograph"""
    out: Path
    """the .png to write, or a folder where --image is one"""
    weights: Weights = "averaged"
    """the averages over time where the run has some, or the weights themselves"""
    blend: Blend = "feather"
    """how the filling joins its surroundings: as it is, with the seam faded inwards, or by OpenCV's seamlessClone"""
    batch_size: Count = 16
    """photographs that go through the network at a time"""
    overwrite: bool = False
    """write over what is there"""


@dataclasses.dataclass(frozen=True)
class _Photo:
    """A photograph, its hole, and the part of it that the network sees.

    pixels: (H, W, C) uint8, C 1 or 3 as in the file.
    hole: (H, W) bool.
    """

    pixels: np.ndarray
    hole: np.ndarray
    icc_profile: bytes | None
    window: Window


@command(name="complete", help_text=_HELP)
def main(run_dir: Path, /, *, request: Annotated[Request, Parameter(name="*")]) -> None:
    folder = request.image.is_dir()
    (outputs.check_folder if folder else outputs.check_file)(request.out, overwrite=request.overwrite)
    files = _match(request) if folder else [(request.image, request.mask, request.out)]
    trained = load_trained(run_dir)
    if not trained.recipe.completes():
        raise UserError(
            f"{run_dir}: its recipe, {trained.config.recipe}, completes no images; expected a run of completion"
        )
    channels = trained.recipe.data.channels
    for image, mask, _ in files:
        _read(image, mask, channels)  # whatever is wrong with one of them is said before anything is written
    for first in range(0, len(files), request.batch_size):
        some = files[first : first + request.batch_size]
        photos = [_read(image, mask, channels) for image, mask, _ in some]
        for photo, filled, (_, _, out) in zip(photos, _fill(trained, request.weights, photos), some, strict=True):
            pixels = _joined(photo, filled, request.blend)
            outputs.write(out, partial(outputs.save_png, pixels=pixels, icc_profile=photo.icc_profile))
    print(f"{request.out}: {len(files):,} filled by {trained.checkpoint}, step {trained.step:,}")


def _match(request: Request) -> list[tuple[Path, Path, Path]]:
    """Photographs, masks and outputs of two folders, by their names without the suffix."""
    if not request.mask.is_dir():
        raise UserError(f"--mask {request.mask}: expected a folder, since --image {request.image} is one")
    images, masks = _by_stem("--image", request.image), _by_stem("--mask", request.mask)
    lacking = [f"no mask for {path.name}" for stem, path in images.items() if stem not in masks]
    lacking += [f"no photograph for the mask {path.name}" for stem, path in masks.items() if stem not in images]
    if lacking:
        raise UserError(f"--image {request.image}, --mask {request.mask}: {', '.join(lacking)}")
    return [(path, masks[stem], request.out / f"{stem}.png") for stem, path in images.items()]


def _by_stem(flag: str, folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix.lower() not in SUFFIXES:
            continue
        if other := found.get(path.stem):
            raise UserError(f"{flag} {folder}: {other.name} and {path.name} differ by their suffix alone; rename one")
        found[path.stem] = path
    if not found:
        raise UserError(f"{flag} {folder}: no images in it; expected files named {', '.join(SUFFIXES)}")
    return found


def _read(image: Path, mask: Path, channels: int) -> _Photo:
    """One photograph and its mask; whatever is wrong with them is a UserError."""
    pixels, icc_profile = _pixels("--image", image)
    white = _luma(_pixels("--mask", mask)[0])[..., 0]
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
    return _Photo(pixels, hole, icc_profile, window_around(hole))


def _pixels(flag: str, path: Path) -> tuple[np.ndarray, bytes | None]:
    try:
        return read_whole(str(path), path.name)
    except BadImage as error:
        raise UserError(f"{flag} {path}: {error.bad_file.reason}") from error


def _fill(trained: Trained, weights: Weights, photos: Sequence[_Photo]) -> list[np.ndarray]:
    """What the network gives for each photograph's window, (image_size, image_size, channels) in [-1, 1]."""
    spec = trained.recipe.data
    seen = []
    for photo in photos:
        pixels = photo.window.of(photo.pixels)
        # Grey for a network of RGB is repeated; RGB for one of grey is grey all over.
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


def _joined(photo: _Photo, filled: np.ndarray, blend: Blend) -> np.ndarray:
    """The photograph with its hole filled, of the file's own channels."""
    grown = grow(filled, photo.window)
    channels = photo.pixels.shape[-1]
    if channels == 1 and grown.shape[-1] == 3:
        grown = _luma(np.rint(grown).astype(np.uint8)).astype(np.float32)
    grown = np.broadcast_to(grown, (*grown.shape[:2], channels))
    pixels = photo.pixels.copy()
    photo.window.of(pixels)[:] = join(photo.window.of(photo.pixels), grown, photo.window.of(photo.hole), blend)
    return pixels


def _luma(pixels: np.ndarray) -> np.ndarray:
    """Grey (H, W, 1) uint8 of grey or RGB."""
    return pixels if pixels.shape[-1] == 1 else np.asarray(Image.fromarray(pixels).convert("L"))[..., None]


if __name__ == "__main__":
    sys.exit(main())
