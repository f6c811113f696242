"""The sizes of pictures from which most families of networks halve and double."""

from hvdgan.errors import UserError


def check_size(image_size: int, family: str) -> None:
    """Refuse pictures of another height and width in pixels."""
    if image_size not in (32, 64, 128, 256):
        raise UserError(f"--image-size {image_size}: {family} takes 32, 64, 128 or 256 pixels")
