"""Data sets that need no files of the user's: digits, synthetic patterns, those of Keras; and outlines as inputs.

Keras reads its data sets from its own folder (`KERAS_HOME`, ~/.keras by default) and downloads missing files.
"""

import contextlib
import functools
import importlib.metadata
import io
import os

import numpy as np
from PIL import Image

from hvdgan.data.numpy_files import NumpyArray
from hvdgan.data.pixels import ResizedStore, WrongAspect, to_pixels
from hvdgan.data.samples import Samples, of_pictures
from hvdgan.data.sharing import in_turn
from hvdgan.data.store import DataRequest, DerivedStore, Size, Store, sides
from hvdgan.errors import UserError, in_one_line
from hvdgan.settings.config import Config
from hvdgan.settings.types import Fit

KERAS = ("mnist", "fashion_mnist", "cifar10", "cifar100")
_PATTERNS, _SHIFTS = 64, 16


def is_builtin(data: str) -> bool:
    """Whether --data names a data set of this module; a folder of that name is opened as `./digits`."""
    return data in ("digits", "synthetic") or data.startswith("keras:")


def open_builtin(request: DataRequest) -> Samples:
    """The pictures of a data set of this module; those of pairs have their outlines as inputs."""
    config, size = request.config, request.size
    store: Store
    labels: np.ndarray | None = None
    if config.data == "digits":
        store, labels, told_by = _digits(config, size)
    elif config.data == "synthetic":
        store, told_by = _Patterns(size, config.channels or 3), [b"synthetic 1"]
    else:
        # Rank 0 reads and downloads them first, then one rank of each other host, then the other ranks.
        images, classes = in_turn(lambda: _of_keras(config.data), request.peers, f"--data {config.data}")
        known = NumpyArray(config.data, images)
        store = ResizedStore(config.data, known, image_size=size, channels=config.channels, fit=config.fit)
        labels, told_by = classes.reshape(-1).astype(np.int32), [b"keras", images.tobytes(), classes.tobytes()]
    if request.paired:
        store, told_by = _Outlined(store), [*told_by, b"outlines"]
    return of_pictures(request, store, told_by=told_by, labels=labels)


def outline(images: np.ndarray) -> np.ndarray:
    """The outlines of bright areas: pixels of at least half the range with a darker one to a side, above or below."""
    bright = images.mean(axis=-1) >= 127.5
    # The border of the image is no edge: bright areas are continued beyond it.
    padded = np.pad(bright, ((0, 0), (1, 1), (1, 1)), mode="edge")
    inside = padded[:, :-2, 1:-1] & padded[:, 2:, 1:-1] & padded[:, 1:-1, :-2] & padded[:, 1:-1, 2:]
    return np.repeat(((bright & ~inside) * np.uint8(255))[..., None], images.shape[-1], axis=-1)


class _Digits(NumpyArray):
    """Pictures in memory, of which the scans are the keys."""

    in_memory = True

    def __init__(self, images: np.ndarray, scans: np.ndarray) -> None:
        super().__init__("digits", images)
        self._scans = scans

    def key(self, index: int) -> bytes:
        return self._scans[index].tobytes()


def _digits(config: Config, size: Size) -> tuple[Store, np.ndarray, list[bytes]]:
    """The 1,797 scanned digits of scikit-learn, 8 x 8 grey pixels, enlarged bicubically, and their labels 0 to 9."""
    if min(sides(size)) < 8:
        raise UserError(f"--image-size {size}: the digits have 8 x 8 pixels; expected 8 or more")
    try:
        images, scans, labels = _enlarged_digits(size, config.fit)
    except WrongAspect as error:
        raise UserError(f"--data digits: a scan has {error}") from error
    channels = config.channels or 1
    store = _Digits(images if channels == 1 else np.repeat(images, channels, axis=-1), scans)
    return store, labels, [b"digits", scans.tobytes()]


@functools.lru_cache(maxsize=4)  # a program that opens many runs, such as a sweep, would enlarge them for each
def _enlarged_digits(size: Size, fit: Fit | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pictures (1797, height, width, 1), the scans that they enlarge, and the labels."""
    # The file of scikit-learn's load_digits(), whose imports would take every rank a second and a half.
    file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",")
    scans = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    images = np.stack([to_pixels(Image.fromarray(scan), size, 1, fit) for scan in scans])
    labels = table[:, -1].astype(np.int32)
    for array in (images, scans, labels):
        array.flags.writeable = False
    return images, scans, labels


class _Patterns(Store):
    """1,024 smooth periodic patterns, for benchmarks: 64, each shifted sideways by sixteenths of the width."""

    in_memory = True

    def __init__(self, image_size: Size, channels: int) -> None:
        super().__init__("synthetic", (_PATTERNS * _SHIFTS, *sides(image_size), channels), np.uint8)
        self._patterns = np.stack([_pattern(number, image_size, channels) for number in range(_PATTERNS)])

    def read(self, indices: np.ndarray) -> np.ndarray:
        shifts, numbers = np.divmod(indices, _PATTERNS)
        pairs = zip(numbers.tolist(), (shifts * self.shape[2] // _SHIFTS).tolist(), strict=True)
        return np.stack([np.roll(self._patterns[number], shift, axis=1) for number, shift in pairs])


class _Outlined(DerivedStore):
    """Records of outlines and pictures."""

    def __init__(self, pictures: Store) -> None:
        super().__init__(pictures, (*pictures.shape[:-1], 2 * pictures.shape[-1]))
        self.in_memory = pictures.in_memory

    def read(self, indices: np.ndarray) -> np.ndarray:
        images = self._stored.read(indices)
        return np.concatenate([outline(images), images], axis=-1)


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


def _of_keras(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The training images of a data set that comes with Keras, and their labels."""
    chosen = name.partition(":")[2]
    if chosen not in KERAS:
        raise UserError(f"--data {name}: expected one of {', '.join(f'keras:{known}' for known in KERAS)}")
    import keras  # takes seconds, so only those who need it import it

    try:
        with contextlib.redirect_stdout(io.StringIO()):  # several ranks would print its progress bar
            (images, labels), _ = getattr(keras.datasets, chosen).load_data()
    except Exception as error:  # of many types: no network, a damaged archive, a full disk
        raise UserError(
            f"--data {name}: Keras cannot load it: {in_one_line(error)}; copy its files from a machine with a "
            f"network to {os.environ.get('KERAS_HOME', '~/.keras')}/datasets, or set KERAS_HOME"
        ) from error
    return images, labels
