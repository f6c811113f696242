"""Data sets known by name: those that Keras brings, and TensorFlow Datasets."""

import contextlib
import io
import os
from typing import Any

import numpy as np
from PIL import Image

from hvdgan.cli.errors import UserError
from hvdgan.data.formats.images import to_pixels
from hvdgan.data.formats.indexing import Features
from hvdgan.data.kept import NOTHING, Kept
from hvdgan.data.sharing import ALONE, Peers, in_turn
from hvdgan.data.source import Source, fingerprint
from hvdgan.data.sources.tfrecords import RecordSource

KERAS = ("mnist", "fashion_mnist", "cifar10", "cifar100")


class KerasSource(Source):
    """The training images of a data set that comes with Keras, and their labels, in memory.

    Keras reads them from its own folder (`KERAS_HOME`, ~/.keras by default) and downloads what is not there. Of several
    ranks rank 0 does so first, then one rank of each other host, then the rest.

    Args:
        name: what `--data` says, `keras:` and one of KERAS.
        image_size: in pixels.
        channels: 1, 3, or None for what the images have.
        peers: the ranks, each of which calls this.

    Raises:
        UserError: there is no such set, or it can neither be read nor downloaded.
    """

    batched = prepared = True

    def __init__(self, name: str, *, image_size: int, channels: int | None, peers: Peers = ALONE) -> None:
        chosen = name.partition(":")[2]
        if chosen not in KERAS:
            raise UserError(f"--data {name}: expected one of {', '.join(f'keras:{known}' for known in KERAS)}")
        images, labels = in_turn(lambda: _load(name, chosen), peers, f"--data {name}")
        self._images = images.reshape(*images.shape[:3], -1)
        self._labels = labels.reshape(-1)
        channels = channels or self._images.shape[-1]
        super().__init__(
            name=name,
            image_size=image_size,
            channels=channels,
            fingerprint=fingerprint(image_size, channels, [b"keras", images.tobytes(), self._labels.tobytes()]),
            labels=self._labels.astype(np.int32),
        )

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, index: int) -> np.ndarray:
        return self.fetch_batch(np.array([index]))[0]

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        images = self._images[indices]
        if images.shape[1:] == (self.image_size, self.image_size, self.channels):
            return images
        if images.shape[-1] == 1:
            images = images[..., 0]  # Pillow's shape of grey
        return np.stack([to_pixels(Image.fromarray(image), self.image_size, self.channels) for image in images])

    def key(self, index: int) -> bytes:
        return self._images[index].tobytes()


def open_tfds(
    name: str, *, image_size: int, channels: int, paired: bool, peers: Peers = ALONE, kept: Kept = NOTHING
) -> Source:
    """The training images of a set of TensorFlow Datasets that `tfds build` has prepared, read as the TFRecords it is.

    Nothing is downloaded: that takes hours for some, and is not a training's business.

    Args:
        name: what `--data` says, `tfds:` and what tfds.builder takes, such as `tfds:celeb_a`.
        image_size: in pixels.
        channels: 1 or 3.
        paired: whether each image comes with an input, side by side.
        peers: the ranks that open it together.
        kept: where the index is found again.

    Raises:
        UserError: the package or the set is not there, or it holds no images.
    """
    chosen = name.partition(":")[2]
    try:
        import tensorflow_datasets as tfds  # an extra, and seconds to load
    except Exception as error:  # it is missing, or something that it needs is of another version
        raise UserError(
            f"--data {name}: TensorFlow Datasets is missing ({error}); pip install 'hvdgan[tfds]'"
        ) from error
    try:
        builder = tfds.builder(chosen)
        split = builder.info.splits.get("train")
    except Exception as error:  # of many types, some of them with pages of text
        raise UserError(f"--data {name}: TensorFlow Datasets says: {_first_line(error)}") from error
    if not split:
        raise UserError(
            f"--data {name}: no training images in {builder.data_dir}; prepare them once with "
            f"`tfds build {chosen}`, and set TFDS_DATA_DIR where they are elsewhere"
        )
    if split.filename_template.filetype_suffix != "tfrecord":
        raise UserError(
            f"--data {name}: prepared as {split.filename_template.filetype_suffix}; expected tfrecord, the default "
            f"of `tfds build`"
        )
    image, label = _features(name, builder.info.features, tfds)
    return RecordSource(
        name,
        [os.fspath(path) for path in split.filepaths],
        Features(image=image, label=label),
        image_size=image_size,
        channels=channels,
        paired=paired,
        class_names=builder.info.features[label].names if label else None,
        peers=peers,
        kept=kept,
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _features(name: str, features: Any, tfds: Any) -> tuple[str, str | None]:
    """The names of the image and of its class: the first of their kinds."""
    kinds = (tfds.features.Image, tfds.features.ClassLabel)
    images, labels = ([key for key in features if isinstance(features[key], kind)] for kind in kinds)
    if not images:
        raise UserError(f"--data {name}: none of its features is an image: {', '.join(features)}")
    return "image" if "image" in images else images[0], labels[0] if labels else None


def _load(name: str, chosen: str) -> tuple[np.ndarray, np.ndarray]:
    import keras  # seconds that others need not pay

    try:
        with contextlib.redirect_stdout(io.StringIO()):  # its progress bar would come from several ranks
            (images, labels), _ = getattr(keras.datasets, chosen).load_data()
    except Exception as error:  # of many types: no network, a damaged archive, no room
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"--data {name}: Keras has not got it: {reason}; bring its files from a machine with a network to "
            f"{os.environ.get('KERAS_HOME', '~/.keras')}/datasets, or set KERAS_HOME"
        ) from error
    return images, labels
