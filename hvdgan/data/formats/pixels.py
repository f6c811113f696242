"""Crops, converts and resizes a decoded image to the square of 8-bit pixels that a source returns."""

import numpy as np
from PIL import Image

from hvdgan.cli.pictures import picture


def to_pixels(image: Image.Image, image_size: int, channels: int) -> np.ndarray:
    """Crop the largest centred square, convert and resize it.

    Transparent pixels are laid over white. 16-bit grey is scaled to 8 bits, not clipped. RGB becomes grey by the luma
    of ITU-R BT.601. Larger images are reduced with an antialiasing Lanczos filter, smaller ones enlarged bicubically.
    Colour profiles are not applied.

    Args:
        image: image of any size and mode.
        image_size: height and width of the result, in pixels.
        channels: channels of the result, 1 or 3.

    Returns:
        uint8 (image_size, image_size, channels).
    """
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = _opaque(image.crop((left, top, left + side, top + side))).convert("L" if channels == 1 else "RGB")
    if side != image_size:
        resample = Image.Resampling.LANCZOS if side > image_size else Image.Resampling.BICUBIC
        square = square.resize((image_size, image_size), resample, reducing_gap=3.0)
    return np.asarray(square).reshape(image_size, image_size, channels)


def arrays_to_pixels(images: np.ndarray, image_size: int, channels: int) -> np.ndarray:
    """Convert an array of images as `to_pixels` does; an array of the wanted shape is returned as it is.

    Args:
        images: images, uint8 (B, H, W, C), C 1, 3 or 4.
        image_size: height and width of the result, in pixels.
        channels: channels of the result, 1 or 3.

    Returns:
        uint8 (B, image_size, image_size, channels).
    """
    if images.shape[1:] == (image_size, image_size, channels):
        return images
    return np.stack([to_pixels(picture(image), image_size, channels) for image in images])


def to_8_bits(values: np.ndarray) -> np.ndarray:
    """Scale unsigned 16-bit values to 8 bits, rounded to the nearest: 65535 becomes 255."""
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _opaque(image: Image.Image) -> Image.Image:
    """The image with 8 bits per channel and without transparency, in one of Pillow's modes."""
    if image.mode.startswith("I"):  # 16-bit grey: I;16, or I from older Pillows; convert("L") would clip it
        return Image.fromarray(to_8_bits(np.asarray(image)))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA"))
    return image
