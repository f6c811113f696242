"""Describes the data to a recipe."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """Facts about the data; `self.data` in a recipe.

    Args:
        image_size: height and width of an image (pixels).
        channels: number of channels, 1 (grey) or 3 (RGB).
        num_images: number of images to train on, without the held-out ones.
        num_classes: number of classes, labelled 0 to num_classes - 1; 0 if the data has no labels.
    """

    image_size: int
    channels: int
    num_images: int
    num_classes: int = 0
