"""From one image file to pixels: what is accepted, and how it is converted."""

import contextlib
import errno
import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from hvdgan.data.formats.pixels import to_pixels
from hvdgan.data.source import BadImage, Unreadable

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")

# Whatever a file's name says, only these decoders see it: others of Pillow's start helper programs (EPS).
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")

MAX_PIXELS = 2**27
"""Larger images are refused by their header: 134 megapixels hold a 108-megapixel photograph, take up to 400 MB in each
thread that decodes one, and lie below the 179 at which Pillow itself refuses."""

MAX_BYTES = 2**30
"""Larger files are refused unread: a file is read whole before it is decoded."""

OF_ONE_FILE = (None, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""what an OSError says that speaks of one file alone: Pillow's own, rights, links that lead nowhere, a path too long"""

# Pillow would warn, file by file, of damaged metadata and of images from 89 megapixels on, which are welcome here.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def check_file(path: str, name: str) -> os.stat_result:
    """Look at a file without opening it: at a named pipe that would wait for its writer for ever.

    Args:
        path: the file.
        name: what to call it in errors.

    Returns:
        What the system says of it.

    Raises:
        BadImage: it is no regular file, empty, too large, or there is no way to it.
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


def check_header(path: str, name: str) -> int:
    """Look at a file without decoding it.

    Args:
        path: the file.
        name: what to call it in errors.

    Returns:
        The file's size in bytes.

    Raises:
        BadImage: it is no image of an accepted format, too large, or not readable.
        Unreadable: the disk has failed, as in all that reads here.
    """
    status = check_file(path, name)
    with _reasons(name), Image.open(path, formats=_FORMATS) as image:
        _check_pixels(image, name)
    return status.st_size


def read_image(file: str | BinaryIO, name: str, image_size: int, channels: int) -> np.ndarray:
    """Decode a file and convert it as `to_pixels` does; of an animation, the first frame.

    Args:
        file: its path, or the open file.
        name: what to call it in errors.
        image_size: height and width of the result, in pixels.
        channels: of the result, 1 or 3.

    Returns:
        uint8 (image_size, image_size, channels).

    Raises:
        BadImage: it cannot be decoded.
    """
    with _reasons(name), Image.open(file, formats=_FORMATS) as image:
        _check_pixels(image, name)
        # JPEG decodes at 1/2, 1/4 or 1/8 for a fraction of the time; twice the size leaves the resampling its work.
        image.draft(None, (2 * image_size, 2 * image_size))
        image.load()
        return to_pixels(_upright(image), image_size, channels)


def read_size(path: str | BinaryIO, name: str) -> tuple[int, int]:
    """Width and height of a file's image in pixels, as it is seen, from its header.

    Raises:
        BadImage: it is no image of an accepted format, or too large.
    """
    with _reasons(name), Image.open(path, formats=_FORMATS) as image:
        _check_pixels(image, name)
        return (image.height, image.width) if _lies_on_its_side(image) else image.size


def read_halves(file: str | BinaryIO, name: str, image_size: int, channels: int) -> np.ndarray:
    """Decode a file that holds an input and its image side by side, and convert each half as `to_pixels` does.

    Args:
        file: its path, or the open file.
        name: what to call it in errors.
        image_size: height and width of the result, in pixels.
        channels: of one half, 1 or 3.

    Returns:
        uint8 (image_size, image_size, 2 * channels), the left half's channels first.

    Raises:
        BadImage: it cannot be decoded, or is not twice as wide as high.
    """
    with _reasons(name), Image.open(file, formats=_FORMATS) as image:
        _check_pixels(image, name)
        upright = _loaded(image)
        width, height = upright.size
        if width != 2 * height:
            reason = "an input and its image side by side are twice as wide as high"
            raise BadImage(name, f"{width} x {height} pixels; {reason}")
        halves = [upright.crop((left, 0, left + width // 2, height)) for left in (0, width // 2)]
        return np.concatenate([to_pixels(half, image_size, channels) for half in halves], axis=-1)


def read_partners(files: Sequence[str | BinaryIO], names: Sequence[str], image_size: int, channels: int) -> np.ndarray:
    """Decode the files of an input and of its image, and convert each as `to_pixels` does.

    Args:
        files: of the input and of the image, paths or open.
        names: what to call them in errors.
        image_size: height and width of the result, in pixels.
        channels: of one image, 1 or 3.

    Returns:
        uint8 (image_size, image_size, 2 * channels), the input's channels first.

    Raises:
        BadImage: one of them cannot be decoded, or they differ in size, so that they would not be cropped alike.
    """
    sizes, pixels = [], []
    for file, name in zip(files, names, strict=True):
        with _reasons(name), Image.open(file, formats=_FORMATS) as image:
            _check_pixels(image, name)
            upright = _loaded(image)
            sizes.append(upright.size)
            pixels.append(to_pixels(upright, image_size, channels))
    (width, height), (its_width, its_height) = sizes
    if sizes[0] != sizes[1]:
        raise BadImage(
            names[0], f"{width} x {height} pixels, and its partner {names[1]} has {its_width} x {its_height}"
        )
    return np.concatenate(pixels, axis=-1)


def read_whole(path: str, name: str) -> tuple[np.ndarray, bytes | None]:
    """Decode a file as it is, upright but neither cropped nor resized, where 8 bits hold its pixels exactly.

    Args:
        path: the file.
        name: what to call it in errors.

    Returns:
        uint8 (H, W, 1) for grey and (H, W, 3) for RGB, and the colour profile, if the file has one.

    Raises:
        BadImage: it cannot be decoded, or is neither grey nor RGB of 8 bits, or has transparent pixels.
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
    """The image in its full size, upright: a JPEG decoded smaller may have no even width."""
    image.load()
    return _upright(image)


def _upright(image: Image.Image) -> Image.Image:
    """The loaded image, turned as its EXIF orientation says."""
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # damaged metadata says nothing against the pixels
        return image
    return image


def _lies_on_its_side(image: Image.Image) -> bool:
    """Whether the EXIF orientation exchanges width and height, by what was read with the header."""
    if image.format == "PNG" and "exif" not in image.info:
        return False  # Pillow would decode all of it, to look behind the pixels
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    except MemoryError:
        raise
    except Exception:  # damaged metadata turns nothing
        return False


def _check_pixels(image: Image.Image, name: str) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise BadImage(name, f"{image.width} x {image.height} pixels, more than the {MAX_PIXELS:,} accepted")


@contextlib.contextmanager
def _reasons(name: str) -> Iterator[None]:
    """Whatever goes wrong is a BadImage of this name: Pillow's parsers raise nearly every type on damaged files.

    Raises:
        Unreadable: what goes wrong is none of the file's doing.
    """
    try:
        yield
    except BadImage:
        raise
    except MemoryError as error:
        raise Unreadable(
            f"out of memory while decoding {name}; fewer --pipeline.threads or, of hvdgan.prepare, --workers need less"
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in OF_ONE_FILE:
            raise Unreadable(
                f"{name}: {_reason(error)}: the disk or the network has failed, not the image; "
                "when it is back, give the same command again"
            ) from error
        raise BadImage(name, _reason(error)) from error


def _reason(error: Exception) -> str:
    """Why an image cannot be read: one line without the path, which the name already tells."""
    if isinstance(error, UnidentifiedImageError):
        return "not a PNG, JPEG, WebP, BMP or GIF image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
