"""The built-in data sets, which need no files: the scanned digits of scikit-learn, and synthetic patterns."""

import functools
import importlib.metadata

import numpy as np
from PIL import Image

from hvdgan.cli.errors import UserError
from hvdgan.cli.types import Fit
from hvdgan.data.pixels import WrongAspect, to_pixels
from hvdgan.data.source import PictureSource, Size, fingerprint, sides


@functools.lru_cache(maxsize=1)
def _digits(image_size: Size, fit: Fit | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The scans (N, 8, 8) uint8, the images (N, H, W, 1) uint8 that they grow to, the labels (N,) int32."""
    # The file of scikit-learn's load_digits(), whose imports would take every rank a second and a half.
    file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",")
    scans = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    images = np.stack([to_pixels(Image.fromarray(scan), image_size, 1, fit) for scan in scans])
    return scans, images, table[:, -1].astype(np.int32)


class DigitsSource(PictureSource):
    """The 1,797 scanned digits that come with scikit-learn, 8 x 8 grey pixels, with their labels 0 to 9.

    They are enlarged bicubically to the image size on opening, and take 1,797 * image_size**2 bytes of memory.

    Args:
        image_size: height and width in pixels, >= 8; one number for both, or two.
        channels: 1, or 3 for the grey value repeated.
        fit: way in which the square scans are brought to a size that is not square.

    Raises:
        UserError: image_size is below 8, or not square without `fit`.
    """

    batched = in_memory = prepared = True

    def __init__(self, *, image_size: Size, channels: int, fit: Fit | None = None) -> None:
        if min(sides(image_size)) < 8:
            raise UserError(f"--image-size {image_size}: the digits have 8 x 8 pixels; expected 8 or more")
        try:
            self._scans, self._images, labels = _digits(image_size, fit)
        except WrongAspect as error:
            raise UserError(f"--data digits: a scan has {error}") from error
        super().__init__(
            name="digits",
            image_size=image_size,
            channels=channels,
            fit=fit,
            fingerprint=fingerprint(image_size, channels, [b"digits", self._scans.tobytes()], fit),
            labels=labels.copy(),
        )

    def __len__(self) -> int:
        return len(self._images)

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        return np.repeat(self._images[indices], self.channels, axis=-1)

    def key(self, index: int) -> bytes:
        return self._scans[index].tobytes()


class SyntheticSource(PictureSource):
    """1,024 smooth periodic patterns, for benchmarks and tests.

    64 patterns are computed on opening; the others are the same patterns, shifted sideways by sixteenths of the width.

    Args:
        image_size: height and width in pixels; one number for both, or two.
        channels: 1 or 3.
    """

    batched = in_memory = prepared = True
    _PATTERNS = 64
    _SHIFTS = 16

    def __init__(self, *, image_size: Size, channels: int) -> None:
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
        return np.roll(self._patterns[number], shift * sides(self.image_size)[1] // self._SHIFTS, axis=1)

    def key(self, index: int) -> bytes:
        return str(index).encode()


def _pattern(number: int, image_size: Size, channels: int) -> np.ndarray:
    """In each channel the product of a vertical and a horizontal wave, uint8 (height, width, channels)."""
    bits = np.random.Philox(key=np.array([number, 0], dtype=np.uint64)).random_raw(2 + 2 * channels)
    waves = 1 + bits[:2] % 2 * 2  # whole numbers: a shifted image has no seam; odd ones: no two shifts are equal
    phases = bits[2:].reshape(2, channels) / 2**64
    down, across = (
        np.cos(2 * np.pi * (wave * (np.arange(side)[:, None] / side) + phase))
        for wave, phase, side in zip(waves, phases, sides(image_size), strict=True)
    )
    return np.rint(127.5 * (1 + down[:, None, :] * across[None, :, :])).astype(np.uint8)
