"""Keras networks, one file per family; each is built by a function from its sizes."""

from hvdgan.errors import UserError


def check_size(image_size: int, family: str) -> None:
    """Refuse pictures of a height and width from which most families cannot halve and double."""
    if image_size not in (32, 64, 128, 256):
        raise UserError(f"--image-size {image_size}: {family} takes 32, 64, 128 or 256 pixels")
