"""Crops, converts and resizes a decoded image to the 8-bit pixels of one size that a source returns."""

import numpy as np
from PIL import Image

from hvdgan.cli.files.pictures import picture
from hvdgan.cli.types import Fit
from hvdgan.data.base.source import Size, sides


class WrongAspect(ValueError):
    """A picture has another aspect ratio than the size that is wanted, and nothing says how to bring it there."""


def to_pixels(image: Image.Image, image_size: Size, channels: int, fit: Fit | None = None) -> np.ndarray:
    """Bring a picture to one size: crop, pad or stretch it, convert and resize it.

    Transparent pixels are laid over white. 16-bit grey is scaled to 8 bits, not clipped. RGB becomes grey by the luma
    of ITU-R BT.601. Larger images are reduced with an antialiasing Lanczos filter, smaller ones enlarged bicubically.
    Colour profiles are not applied.

    Args:
        image: image of any size and mode.
        image_size: height and width of the result, in pixels; one number for both, or two.
        channels: channels of the result, 1 or 3.
        fit: treatment of another aspect ratio: crop (the largest centred part), pad (black borders around the whole
            picture) or stretch; None: the picture is refused.

    Returns:
        uint8 (height, width, channels).

    Raises:
        WrongAspect: `fit` is None, and the picture has another aspect ratio.
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


def refuse_aspect(width: int, height: int, image_size: Size, fit: Fit | None) -> None:
    """Refuse a picture whose aspect ratio is not the wanted one, unless `fit` says what to do.

    Raises:
        WrongAspect: the ratios differ, and `fit` is None.
    """
    wanted = sides(image_size)
    if fit is None and width * wanted[0] != height * wanted[1]:
        raise WrongAspect(
            f"{width} x {height} pixels, and {wanted[1]} x {wanted[0]} are wanted; say what to do with --fit crop, "
            "--fit pad or --fit stretch, or give --image-size HEIGHT,WIDTH, and --crop for a part of each"
        )


def arrays_to_pixels(images: np.ndarray, image_size: Size, channels: int, fit: Fit | None = None) -> np.ndarray:
    """Convert an array of images as `to_pixels` does; an array of the wanted shape is returned as it is.

    Args:
        images: images, uint8 (B, H, W, C), C 1, 3 or 4.
        image_size: height and width of the result, in pixels; one number for both, or two.
        channels: channels of the result, 1 or 3.
        fit: argument of `to_pixels`.

    Returns:
        uint8 (B, height, width, channels).
    """
    if images.shape[1:] == (*sides(image_size), channels):
        return images
    return np.stack([to_pixels(picture(image), image_size, channels, fit) for image in images])


def to_8_bits(values: np.ndarray) -> np.ndarray:
    """Scale unsigned 16-bit values to 8 bits, rounded to the nearest: 65535 becomes 255."""
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _resized(image: Image.Image, width: int, height: int) -> Image.Image:
    if image.size == (width, height):
        return image
    smaller = image.width > width or image.height > height
    resample = Image.Resampling.LANCZOS if smaller else Image.Resampling.BICUBIC
    return image.resize((width, height), resample, reducing_gap=3.0)


def _opaque(image: Image.Image) -> Image.Image:
    """The image with 8 bits per channel and without transparency, in one of Pillow's modes."""
    if image.mode.startswith("I"):  # 16-bit grey: I;16, or I from older Pillows; convert("L") would clip it
        return Image.fromarray(to_8_bits(np.asarray(image)))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA"))
    return image
