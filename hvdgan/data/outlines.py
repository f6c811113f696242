"""Pairs of a picture and its outline, to try a recipe of pairs with any pictures."""

import numpy as np

from hvdgan.data.source import PictureSource, SourceWrapper, fingerprint
from hvdgan.values.sample_values import Layout, SampleValues


class OutlinePairs(SourceWrapper):
    """Another source's pictures, each with its outline as the input.

    Args:
        pictures: a source that is not paired.
    """

    def __init__(self, pictures: PictureSource) -> None:
        digest = fingerprint(pictures.image_size, pictures.channels, [pictures.fingerprint.encode(), b"outlines 1"])
        pixels = pictures.values.images
        layout = Layout(pictures.layout.shape, pictures.layout.shape)
        super().__init__(pictures, fingerprint=digest, layout=layout, values=SampleValues(pixels, pixels))

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        images = self._source.fetch_batch(indices)
        return np.concatenate([outline(images), images], axis=-1)


def outline(images: np.ndarray) -> np.ndarray:
    """The outlines of bright areas: pixels of at least half the range with a darker one to a side, above or below.

    Args:
        images: images, uint8 (B, H, W, C); the mean over the channels counts.

    Returns:
        uint8 (B, H, W, C), 255 on the outline and 0 elsewhere, equal in all channels.
    """
    bright = images.mean(axis=-1) >= 127.5
    # The border of the image is no edge: bright areas are continued beyond it.
    padded = np.pad(bright, ((0, 0), (1, 1), (1, 1)), mode="edge")
    inside = padded[:, :-2, 1:-1] & padded[:, 2:, 1:-1] & padded[:, 1:-1, :-2] & padded[:, 1:-1, 2:]
    return np.repeat(((bright & ~inside) * np.uint8(255))[..., None], images.shape[-1], axis=-1)
