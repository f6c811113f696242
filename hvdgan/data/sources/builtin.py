"""The built-in data sets, which need no files: the scanned digits of scikit-learn, and synthetic patterns."""

import functools
import importlib.metadata

import numpy as np
from PIL import Image

from hvdgan.cli.errors import UserError
from hvdgan.data.base.source import Source, fingerprint
from hvdgan.data.formats.pixels import to_pixels


@functools.lru_cache(maxsize=1)
def _digits(image_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The scans (N, 8, 8) uint8, the images (N, S, S, 1) uint8 that they grow to, the labels (N,) int32."""
    # The file of scikit-learn's load_digits(), whose imports would take every rank a second and a half.
    file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",")
    scans = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    images = np.stack([to_pixels(Image.fromarray(scan), image_size, 1) for scan in scans])
    return scans, images, table[:, -1].astype(np.int32)


class DigitsSource(Source):
    """The 1,797 scanned digits that come with scikit-learn, 8 x 8 grey pixels, with their labels 0 to 9.

    They are enlarged bicubically to the image size on opening, and take 1,797 * image_size**2 bytes of memory.

    Args:
        image_size: height and width in pixels, >= 8.
        channels: 1, or 3 for the grey value repeated.

    Raises:
        UserError: image_size is below 8.
    """

    batched = in_memory = prepared = True

    def __init__(self, *, image_size: int, channels: int) -> None:
        if image_size < 8:
            raise UserError(f"--image-size {image_size}: the digits have 8 x 8 pixels; expected 8 or more")
        self._scans, self._images, labels = _digits(image_size)
        super().__init__(
            name="digits",
            image_size=image_size,
            channels=channels,
            fingerprint=fingerprint(image_size, channels, [b"digits", self._scans.tobytes()]),
            labels=labels.copy(),
        )

    def __len__(self) -> int:
        return len(self._images)

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        return np.repeat(self._images[indices], self.channels, axis=-1)

    def key(self, index: int) -> bytes:
        return self._scans[index].tobytes()


class SyntheticSource(Source):
    """1,024 smooth periodic patterns, for benchmarks and tests.

    64 patterns are computed on opening; the others are the same patterns, shifted sideways by sixteenths of the width.

    Args:
        image_size: height and width in pixels.
        channels: 1 or 3.
    """

    batched = in_memory = prepared = True
    _PATTERNS = 64
    _SHIFTS = 16

    def __init__(self, *, image_size: int, channels: int) -> None:
        self._patterns = np.stack([_pattern(number, image_size, channels) for number in range(self._PATTERNS)])
        super().__init__(
            name="synthetic",
            image_size=image_size,
            channels=channels,
            fingerprint=fingerprint(image_size, channels, [b"synthetic 1"]),
        )

    def __len__(self) -> int:
        return self._PATTERNS * self._SHIFTS

    def fetch(self, index: int) -> np.ndarray:
        shift, number = divmod(index, self._PATTERNS)
        return np.roll(self._patterns[number], shift * self.image_size // self._SHIFTS, axis=1)

    def key(self, index: int) -> bytes:
        return str(index).encode()


def _pattern(number: int, image_size: int, channels: int) -> np.ndarray:
    """In each channel the product of a vertical and a horizontal wave, uint8 (image_size, image_size, channels)."""
    bits = np.random.Philox(key=np.array([number, 0], dtype=np.uint64)).random_raw(2 + 2 * channels)
    waves = 1 + bits[:2] % 2 * 2  # whole numbers: a shifted image has no seam; odd ones: no two shifts are equal
    phases = bits[2:].reshape(2, channels) / 2**64
    places = np.arange(image_size)[:, None] / image_size
    down, across = np.cos(2 * np.pi * (waves[:, None, None] * places + phases[:, None, :]))
    return np.rint(127.5 * (1 + down[:, None, :] * across[None, :, :])).astype(np.uint8)
