"""Sources of pairs from arrays, and pairs of an image and its outline."""

from typing import Any

import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.data.base.source import Source, SourceWrapper, fingerprint
from hvdgan.data.sources.arrays import ArraySource, array_names


class ArrayPairs(Source):
    """Inputs and images in a file: the arrays `inputs` and `images` of an .npz, or one array of twice-as-wide images.

    In the latter case, the left half of each holds the input and the right half the image. All else is as in
    ArraySource.

    Args:
        name: value of `--data`, the path of the file.
        image_size: height and width in pixels, to which inputs and images are cropped and resized.
        channels: 1, 3, or None for those of the arrays, 3 if they differ.

    Raises:
        UserError: the file cannot be read, or holds no pairs.
    """

    batched = prepared = True

    def __init__(self, name: str, *, image_size: int, channels: int | None) -> None:
        members = array_names(name)
        two = {"inputs", "images"} <= set(members)
        choices = [{"member": "inputs"}, {"member": "images"}] if two else [{"half": 0}, {"half": 1}]
        pair = [ArraySource(name, image_size=image_size, channels=channels, **choice) for choice in choices]
        if pair[0].channels != pair[1].channels:
            pair = [ArraySource(name, image_size=image_size, channels=3, **choice) for choice in choices]
        self._inputs, self._images = pair
        inputs_shape, shape = self._inputs.array_shape, self._images.array_shape
        if inputs_shape[:3] != shape[:3] or not (two or shape[2] == 2 * shape[1]):
            raise UserError(
                f"--data {name}: shape {inputs_shape}{f' of inputs and {shape} of images' if two else ''}; "
                "pairs are two arrays, inputs and images, of equal number, height and width in an .npz, or one array "
                "whose width is twice its height, with an input in the left half and its image in the right"
            )
        self.array_shape = shape
        super().__init__(
            name=name,
            image_size=image_size,
            channels=self._images.channels,
            fingerprint=fingerprint(
                image_size, self._images.channels, [b"pairs", *(part.fingerprint.encode() for part in pair)]
            ),
            labels=self._images.labels,
            paired=True,
        )

    def __len__(self) -> int:
        return len(self._images)

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        return np.concatenate([self._inputs.fetch_batch(indices), self._images.fetch_batch(indices)], axis=-1)

    def key(self, index: int) -> bytes:
        return self._images.key(index)

    def stamp(self) -> list[Any] | None:
        return self._images.stamp()


class OutlinePairs(SourceWrapper):
    """Another source's images, each with its outline as the input: pairs to try a recipe with.

    Args:
        images: a source that is not paired.
    """

    def __init__(self, images: Source) -> None:
        digest = fingerprint(images.image_size, images.channels, [images.fingerprint.encode(), b"outlines 1"])
        super().__init__(images, fingerprint=digest, paired=True)

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
