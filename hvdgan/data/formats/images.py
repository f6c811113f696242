"""Reads image files: checks them by their header, decodes them, and turns them upright."""

import contextlib
import errno
import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from hvdgan.cli.errors import in_one_line
from hvdgan.cli.types import Fit
from hvdgan.data.base.source import BadImage, Size, Unreadable, sides
from hvdgan.data.formats.pixels import refuse_aspect, to_pixels

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")

# Only these decoders are tried, whatever the file's name: some others of Pillow start helper programs (EPS).
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")

MAX_PIXELS = 2**27
"""Larger images are refused by their header. The limit admits photographs of 108 megapixels, bounds the memory of each
thread that decodes to 400 MB, and is below Pillow's own limit of 179 megapixels."""

MAX_BYTES = 2**30
"""Larger files are refused without reading, since a file is read as a whole before it is decoded."""

OF_ONE_FILE = (None, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""errors that concern one file only: Pillow's own (None), missing permissions, dangling links, too long paths"""

# Pillow would warn, for each file, of damaged metadata and of images above 89 megapixels, which are accepted here.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def check_file(path: str, name: str) -> os.stat_result:
    """Check a file without opening it: opening a named pipe would wait for its writer without end.

    Args:
        path: path of the file.
        name: name of the file in errors.

    Returns:
        The file's status.

    Raises:
        BadImage: it is not a regular file, is empty or too large, or cannot be reached.
        Unreadable: the disk has failed.
    """
    with _reasons(name):
        status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise BadImage(name, "not a regular file")
    if status.st_size == 0:
        raise BadImage(name, "empty file")
    if status.st_size > MAX_BYTES:
        raise BadImage(name, f"{status.st_size:,} bytes, more than the {MAX_BYTES:,} accepted")
    return status


def check_header(path: str, name: str) -> os.stat_result:
    """Check a file's header without decoding the image.

    Args:
        path: path of the file.
        name: name of the file in errors.

    Returns:
        The file's status.

    Raises:
        BadImage: it is not an image of an accepted format, is too large, or cannot be read.
        Unreadable: the disk has failed, as in all functions of this module.
    """
    status = check_file(path, name)
    with _opened(path, name):
        return status


def read_image(file: str | BinaryIO, name: str, image_size: Size, channels: int, fit: Fit | None = None) -> np.ndarray:
    """Decode a file, of an animation the first frame, and convert it as `to_pixels` does.

    Args:
        file: path of the file, or the open file.
        name: name of the file in errors.
        image_size: height and width of the result, in pixels; one number for both, or two.
        channels: channels of the result, 1 or 3.
        fit: argument of `to_pixels`.

    Returns:
        uint8 (height, width, channels).

    Raises:
        BadImage: it cannot be decoded, or has another aspect ratio while `fit` is None.
    """
    with _opened(file, name) as image:
        width, height = image.size
        # JPEG decodes at 1/2, 1/4 or 1/8 in a fraction of the time; twice the size preserves the quality of resampling.
        longest = 2 * max(sides(image_size))
        image.draft(None, (longest, longest))
        image.load()
        loaded = image.size
        upright = _upright(image)
        if fit is None:
            refuse_aspect(*((width, height) if upright.size == loaded else (height, width)), image_size, fit)
            fit = "stretch"  # a JPEG that is decoded at a fraction of its size may be up to a pixel too long
        return to_pixels(upright, image_size, channels, fit)


def read_size(path: str | BinaryIO, name: str) -> tuple[int, int]:
    """Width and height of the upright image in pixels, from the file's header.

    Raises:
        BadImage: it is not an image of an accepted format, or is too large.
    """
    with _opened(path, name) as image:
        return (image.height, image.width) if _lies_on_its_side(image) else image.size


def read_halves(file: str | BinaryIO, name: str, image_size: Size, channels: int) -> np.ndarray:
    """Decode a file that holds an input and its image side by side, and convert each half as `to_pixels` does.

    Args:
        file: path of the file, or the open file.
        name: name of the file in errors.
        image_size: height and width of the result, in pixels; one number for both, or two.
        channels: channels of one half, 1 or 3.

    Returns:
        uint8 (height, width, 2 * channels), the left half's channels first.

    Raises:
        BadImage: it cannot be decoded, or is not twice as wide as high.
    """
    with _opened(file, name) as image:
        upright = _loaded(image)
        width, height = upright.size
        if width != 2 * height:
            reason = "an input and its image side by side are twice as wide as high"
            raise BadImage(name, f"{width} x {height} pixels; {reason}")
        halves = [upright.crop((left, 0, left + width // 2, height)) for left in (0, width // 2)]
        return np.concatenate([to_pixels(half, image_size, channels) for half in halves], axis=-1)


def read_partners(
    files: Sequence[str | BinaryIO], names: Sequence[str], image_size: Size, channels: int, fit: Fit | None = None
) -> np.ndarray:
    """Decode the files of an input and of its image, and convert each as `to_pixels` does.

    Args:
        files: files of the input and of the image, as paths or open files.
        names: names of the files in errors.
        image_size: height and width of the result, in pixels; one number for both, or two.
        channels: channels of one image, 1 or 3.
        fit: argument of `to_pixels`.

    Returns:
        uint8 (height, width, 2 * channels), the input's channels first.

    Raises:
        BadImage: one of them cannot be decoded, or they differ in size and so would be cropped differently.
    """
    sizes, pixels = [], []
    for file, name in zip(files, names, strict=True):
        with _opened(file, name) as image:
            upright = _loaded(image)
            sizes.append(upright.size)
            pixels.append(to_pixels(upright, image_size, channels, fit))
    (width, height), (its_width, its_height) = sizes
    if sizes[0] != sizes[1]:
        raise BadImage(
            names[0], f"{width} x {height} pixels, and its partner {names[1]} has {its_width} x {its_height}"
        )
    return np.concatenate(pixels, axis=-1)


def read_whole(path: str, name: str) -> tuple[np.ndarray, bytes | None]:
    """Decode a file of 8 bits per channel without loss: turned upright, but neither cropped nor resized.

    Args:
        path: path of the file.
        name: name of the file in errors.

    Returns:
        uint8 (H, W, 1) for grey and (H, W, 3) for RGB, and the colour profile, if the file has one.

    Raises:
        BadImage: it cannot be decoded, is neither grey nor RGB of 8 bits, or has transparent pixels.
    """
    check_header(path, name)
    with _reasons(name), Image.open(path, formats=_FORMATS) as image:
        upright = _loaded(image)
    if upright.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
        raise BadImage(name, f"its colour mode is {upright.mode}; expected grey or RGB of 8 bits")
    if upright.has_transparency_data and np.asarray(upright.convert("RGBA"))[..., 3].min() < 255:
        raise BadImage(name, "it has transparent pixels; save it without")
    grey = upright.mode in ("1", "L", "LA")
    pixels = np.asarray(upright.convert("L" if grey else "RGB"))
    return pixels[..., None] if grey else pixels, image.info.get("icc_profile")


def _loaded(image: Image.Image) -> Image.Image:
    """The upright image in its full size: a JPEG that is decoded at a fraction of it may have an odd width."""
    image.load()
    return _upright(image)


def _upright(image: Image.Image) -> Image.Image:
    """The loaded image, turned according to its EXIF orientation."""
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # the pixels may be sound although the metadata are damaged
        return image
    return image


def _lies_on_its_side(image: Image.Image) -> bool:
    """Check if the EXIF orientation, as far as the header tells it, exchanges width and height."""
    if image.format == "PNG" and "exif" not in image.info:
        return False  # Pillow would decode the whole image to search behind the pixels
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    except MemoryError:
        raise
    except Exception:  # damaged metadata do not turn an image
        return False


@contextlib.contextmanager
def _opened(file: str | BinaryIO, name: str) -> Iterator[Image.Image]:
    """Open an image whose header is sound; every error in the block becomes a BadImage of this name."""
    with _reasons(name), Image.open(file, formats=_FORMATS) as image:
        _check_pixels(image, name)
        yield image


def _check_pixels(image: Image.Image, name: str) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise BadImage(name, f"{image.width} x {image.height} pixels, more than the {MAX_PIXELS:,} accepted")


@contextlib.contextmanager
def _reasons(name: str) -> Iterator[None]:
    """Turn every error into a BadImage of this name: Pillow's parsers raise many types on damaged files.

    Raises:
        Unreadable: the error is not the file's.
    """
    try:
        yield
    except BadImage:
        raise
    except MemoryError as error:
        raise Unreadable(
            f"out of memory while decoding {name}; "
            "use fewer threads (--pipeline.threads) or, with hvdgan.prepare, fewer processes (--workers)"
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in OF_ONE_FILE:
            raise Unreadable(
                f"{name}: {_reason(error)}: the disk or the network has failed, not the image; "
                "repair it, then give the same command again"
            ) from error
        raise BadImage(name, _reason(error)) from error


def _reason(error: Exception) -> str:
    """The reason why an image cannot be read, in one line and without the path."""
    if isinstance(error, UnidentifiedImageError):
        return "not a PNG, JPEG, WebP, BMP or GIF image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return in_one_line(error)
