"""Reads picture files, and brings pictures to 8-bit pixels of one size."""

import contextlib
import errno
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from hvdgan.cli.errors import in_one_line
from hvdgan.cli.files.pictures import picture
from hvdgan.cli.types import Fit
from hvdgan.data.bad_files import BadImage, Unreadable
from hvdgan.data.store import Size, sides

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")

# Only these decoders are tried, whatever the file's name: some others of Pillow start helper programs (EPS).
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")

_MAX_PIXELS = 2**27
"""Larger images are refused by their header. The limit admits photographs of 108 megapixels, bounds the memory of each
thread that decodes to 400 MB, and is below Pillow's own limit of 179 megapixels."""

MAX_BYTES = 2**30
"""Larger files are refused without reading, since a file is read as a whole before it is decoded."""

OF_ONE_FILE = (None, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""errors that concern one file only: Pillow's own (None), missing permissions, dangling links, too long paths"""

# Pillow would warn, for each file, of damaged metadata and of images above 89 megapixels, which are accepted here.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class WrongAspect(ValueError):
    """A picture has another aspect ratio than the size that is wanted, and nothing says how to bring it there."""


def read_sample(
    files: Sequence[BinaryIO],
    names: Sequence[str],
    image_size: Size,
    channels: int,
    fit: Fit | None = None,
    *,
    paired: bool = False,
) -> np.ndarray:
    """Decode a picture, of an animation the first frame, or the input and the image of a pair."""
    if len(files) == 2:
        return _read_partners(files, names, image_size, channels, fit)
    return (
        _read_halves(files[0], names[0], image_size, channels)
        if paired
        else read_image(files[0], names[0], image_size, channels, fit)
    )


def read_image(file: BinaryIO, name: str, image_size: Size, channels: int, fit: Fit | None = None) -> np.ndarray:
    """One picture as read_sample() reads it."""
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


def _read_halves(file: BinaryIO, name: str, image_size: Size, channels: int) -> np.ndarray:
    with _opened(file, name) as image:
        upright = _loaded(image)
        width, height = upright.size
        if width != 2 * height:
            reason = "an input and its image side by side are twice as wide as high"
            raise BadImage(name, f"{width} x {height} pixels; {reason}")
        halves = [upright.crop((left, 0, left + width // 2, height)) for left in (0, width // 2)]
        return np.concatenate([to_pixels(half, image_size, channels) for half in halves], axis=-1)


def _read_partners(
    files: Sequence[BinaryIO], names: Sequence[str], image_size: Size, channels: int, fit: Fit | None
) -> np.ndarray:
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


def read_size(file: BinaryIO, name: str) -> tuple[int, int]:
    """Width and height of the upright image in pixels, from the file's header."""
    with _opened(file, name) as image:
        return (image.height, image.width) if _lies_on_its_side(image) else image.size


def read_whole(path: str, name: str) -> tuple[np.ndarray, bytes | None]:
    """Decode a file of 8 bits per channel without loss: turned upright, but neither cropped nor resized.

    Returns:
        uint8 (H, W, 1) for grey and (H, W, 3) for RGB, and the colour profile, if the file has one.

    Raises:
        BadImage: it cannot be decoded, is neither grey nor RGB of 8 bits, or has transparent pixels.
    """
    with open_file(path, name) as file, _opened(file, name) as image:
        upright = _loaded(image)
    if upright.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
        raise BadImage(name, f"its colour mode is {upright.mode}; expected grey or RGB of 8 bits")
    if upright.has_transparency_data and np.asarray(upright.convert("RGBA"))[..., 3].min() < 255:
        raise BadImage(name, "it has transparent pixels; save it without")
    grey = upright.mode in ("1", "L", "LA")
    pixels = np.asarray(upright.convert("L" if grey else "RGB"))
    return pixels[..., None] if grey else pixels, image.info.get("icc_profile")


@contextlib.contextmanager
def open_file(path: str, name: str) -> Iterator[BinaryIO]:
    """Open a file of a size that can be read as a whole; every error in the block becomes a BadImage of this name."""
    with reasons(name), open(path, "rb") as file:
        check_bytes(os.fstat(file.fileno()).st_size, name)
        yield file


def check_bytes(size: int, name: str) -> None:
    """Raise a BadImage if a file of this size in bytes is empty or too large."""
    if size == 0:
        raise BadImage(name, "empty file")
    if size > MAX_BYTES:
        raise BadImage(name, f"{size:,} bytes, more than the {MAX_BYTES:,} accepted")


def to_pixels(image: Image.Image, image_size: Size, channels: int, fit: Fit | None = None) -> np.ndarray:
    """Bring a picture to one size: crop, pad or stretch it, convert and resize it.

    Transparent pixels are laid over white. 16-bit grey is scaled to 8 bits, not clipped. RGB becomes grey by the luma
    of ITU-R BT.601. Larger images are reduced with an antialiasing Lanczos filter, smaller ones enlarged bicubically.
    Colour profiles are not applied.
    """
    height, width = sides(image_size)
    refuse_aspect(image.width, image.height, image_size, fit)
    scale = min(image.width / width, image.height / height)
    if fit != "stretch" and fit != "pad":
        across, down = round(width * scale), round(height * scale)
        left, top = (image.width - across) // 2, (image.height - down) // 2
        image = image.crop((left, top, left + across, top + down))
    part = _opaque(image).convert("L" if channels == 1 else "RGB")
    if fit == "pad":
        scale = max(image.width / width, image.height / height)
        inner = _resized(part, max(1, round(image.width / scale)), max(1, round(image.height / scale)))
        part = Image.new(part.mode, (width, height))
        part.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
    return np.asarray(_resized(part, width, height)).reshape(height, width, channels)


def arrays_to_pixels(images: np.ndarray, image_size: Size, channels: int, fit: Fit | None = None) -> np.ndarray:
    """Convert images, uint8 (B, H, W, C), as `to_pixels` does; those of the wanted shape are returned as they are."""
    if images.shape[1:] == (*sides(image_size), channels):
        return images
    return np.stack([to_pixels(picture(image), image_size, channels, fit) for image in images])


def refuse_aspect(width: int, height: int, image_size: Size, fit: Fit | None) -> None:
    """Raise WrongAspect if a picture's aspect ratio is not the wanted one, and `fit` does not say what to do."""
    wanted = sides(image_size)
    if fit is None and width * wanted[0] != height * wanted[1]:
        raise WrongAspect(
            f"{width} x {height} pixels, and {wanted[1]} x {wanted[0]} are wanted; say what to do with --fit crop, "
            "--fit pad or --fit stretch, or give --image-size HEIGHT,WIDTH, and --crop for a part of each"
        )


@contextlib.contextmanager
def reasons(name: str) -> Iterator[None]:
    """Turn every error into a BadImage of this name: Pillow's parsers raise many types on damaged files."""
    try:
        yield
    except (BadImage, Unreadable):
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
        return "not a PNG, JPEG, WebP, BMP, GIF or TIFF image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return in_one_line(error)


@contextlib.contextmanager
def _opened(file: BinaryIO, name: str) -> Iterator[Image.Image]:
    """Open an image whose header is sound; every error in the block becomes a BadImage of this name."""
    with reasons(name), Image.open(file, formats=_FORMATS) as image:
        if image.width * image.height > _MAX_PIXELS:
            raise BadImage(name, f"{image.width} x {image.height} pixels, more than the {_MAX_PIXELS:,} accepted")
        if image.format == "TIFF" and (pages := getattr(image, "n_frames", 1)) > 1:
            raise BadImage(name, f"a stack of {pages} pages; save each page as a file, or all as one .npy file")
        yield image


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
    if image.format == "TIFF":
        return False  # Pillow has exchanged them
    if image.format == "PNG" and "exif" not in image.info:
        return False  # Pillow would decode the whole image to search behind the pixels
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    except MemoryError:
        raise
    except Exception:  # damaged metadata do not turn an image
        return False


def _resized(image: Image.Image, width: int, height: int) -> Image.Image:
    if image.size == (width, height):
        return image
    smaller = image.width > width or image.height > height
    resample = Image.Resampling.LANCZOS if smaller else Image.Resampling.BICUBIC
    return image.resize((width, height), resample, reducing_gap=3.0)


def _opaque(image: Image.Image) -> Image.Image:
    """The image with 8 bits per channel and without transparency, in one of Pillow's modes."""
    if image.mode.startswith("I;16"):  # 16-bit grey, which convert("L") would clip
        return Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("numbers with a sign, or of 32 bits; expected 8 or 16 bits, or an .npy file")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA"))
    return image
