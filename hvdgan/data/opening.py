"""The choice of a source by `--data`, and the sources that need no files."""

import dataclasses
import importlib.metadata
import os
from pathlib import Path

import numpy as np
from PIL import Image

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.data.formats.images import to_pixels
from hvdgan.data.formats.indexing import Features
from hvdgan.data.formats.manifest import is_prepared
from hvdgan.data.kept import NOTHING, Kept
from hvdgan.data.sharing import ALONE, Peers
from hvdgan.data.source import Source, fingerprint
from hvdgan.data.sources.arrays import ArraySource
from hvdgan.data.sources.folder import FolderSource
from hvdgan.data.sources.named import KerasSource, open_tfds
from hvdgan.data.sources.pairs import ArrayPairs, OutlinePairs
from hvdgan.data.sources.shards import ShardSource
from hvdgan.data.sources.tfrecords import RecordSource, files_named, shape_of

EXPECTED = (
    "digits, synthetic, a folder of images or of packed shards, an .npy/.npz array, TFRecord files (a path, or a "
    "pattern in quotes such as 'data/*.tfrecord'), keras:mnist and the like, or tfds:NAME"
)


def open_source(config: Config, *, paired: bool = False, peers: Peers = ALONE, kept: Kept = NOTHING) -> Source:
    """Open what `--data` names.

    `digits` and `synthetic` are words; a folder of that name is opened as `./digits`.

    Args:
        config: data, image_size, channels, max_bad_fraction and what is said of TFRecords are used.
        paired: whether each image must come with an input: of a folder, see FolderSource; of an array, see ArrayPairs;
            of TFRecords, see Features; that of a digit, a synthetic image or one of Keras is its outline.
        peers: the ranks that open it, each of which calls this: they share what there is to look at.
        kept: what an earlier start has found by looking.

    Raises:
        UserError: there is nothing of that name, it holds no images, or too many are broken.
        RunError: the ranks do not see the same files.
    """
    size, channels = config.image_size, config.channels
    kind = config.data.partition(":")[0]
    if config.data in ("digits", "synthetic") or kind == "keras":
        made: Source
        if config.data == "digits":
            made = DigitsSource(image_size=size, channels=channels or 1)
        elif config.data == "synthetic":
            made = SyntheticSource(image_size=size, channels=channels or 3)
        else:
            made = KerasSource(config.data, image_size=size, channels=channels, peers=peers)
        return OutlinePairs(made) if paired else made
    if kind == "tfds":
        return open_tfds(config.data, image_size=size, channels=channels or 3, paired=paired, peers=peers, kept=kept)
    try:
        opened = _open_files(config, paired, peers, kept)
        problem = "of no known kind" if os.path.exists(config.data) else "no such file or folder"
    except OSError as error:
        opened, problem = None, str(error.strerror)
    if opened is None:
        raise UserError(f"--data {config.data}: {problem}; expected {EXPECTED}")
    return opened


def _open_files(config: Config, paired: bool, peers: Peers, kept: Kept) -> Source | None:
    """What lies at a path; None if nothing does, or nothing known."""
    data, size, channels = config.data, config.image_size, config.channels
    path = Path(data)
    if data and path.is_dir() and is_prepared(path):
        return ShardSource(data, image_size=size, channels=channels, paired=paired, peers=peers)
    if data and path.is_dir():
        return FolderSource(
            data,
            image_size=size,
            channels=channels or 3,
            max_bad_fraction=config.max_bad_fraction,
            paired=paired,
            peers=peers,
        )
    if path.suffix.lower() in (".npy", ".npz") and path.exists():
        array = ArrayPairs if paired else ArraySource
        return array(data, image_size=size, channels=channels)
    if not (files := files_named(data)):
        return None
    shape = shape_of(config.tfrecord_shape, paired=paired)
    features = Features(config.tfrecord_image or "image", config.tfrecord_label, config.tfrecord_input, shape)
    if shape and features.input:
        raise UserError(f"--tfrecord-input {features.input}: goes with encoded images, not with --tfrecord-shape")
    if features.input and not paired:
        features = dataclasses.replace(features, input=None)
    return RecordSource(
        data, files, features, image_size=size, channels=channels or 3, paired=paired, peers=peers, kept=kept
    )


class DigitsSource(Source):
    """The 1,797 scanned digits that come with scikit-learn, 8 x 8 grey pixels, with their labels 0 to 9.

    They grow bicubically to the image size, once, on opening: 1,797 * image_size**2 bytes.

    Args:
        image_size: in pixels, >= 8.
        channels: 1, or 3 for the grey repeated.

    Raises:
        UserError: image_size is below 8.
    """

    batched = in_memory = prepared = True

    def __init__(self, *, image_size: int, channels: int) -> None:
        if image_size < 8:
            raise UserError(f"--image-size {image_size}: the digits have 8 x 8 pixels; expected 8 or more")
        # What its load_digits() reads, without the second and a half that its imports take in every rank.
        file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
        table = np.loadtxt(str(file), delimiter=",")
        self._scans = scans = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        self._images = np.stack([to_pixels(Image.fromarray(scan), image_size, 1) for scan in scans])
        super().__init__(
            name="digits",
            image_size=image_size,
            channels=channels,
            fingerprint=fingerprint(image_size, channels, [b"digits", scans.tobytes()]),
            labels=table[:, -1].astype(np.int32),
        )

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, index: int) -> np.ndarray:
        return self.fetch_batch(np.array([index]))[0]

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        return np.repeat(self._images[indices], self.channels, axis=-1)

    def key(self, index: int) -> bytes:
        return self._scans[index].tobytes()


class SyntheticSource(Source):
    """Smooth periodic patterns, 1,024 of them, made without any file: for benchmarks and tests.

    64 patterns are computed on opening; the others are these, shifted sideways by sixteenths of the width.

    Args:
        image_size: in pixels.
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
    """Blobs: in each channel the product of a wave down and a wave across, uint8 (image_size, image_size, channels)."""
    bits = np.random.Philox(key=np.array([number, 0], dtype=np.uint64)).random_raw(2 + 2 * channels)
    waves = 1 + bits[:2] % 2 * 2  # whole, so that a shifted image has no seam, and odd, so that no two shifts are equal
    phases = bits[2:].reshape(2, channels) / 2**64
    places = np.arange(image_size)[:, None] / image_size
    down, across = np.cos(2 * np.pi * (waves[:, None, None] * places + phases[:, None, :]))
    return np.rint(127.5 * (1 + down[:, None, :] * across[None, :, :])).astype(np.uint8)
