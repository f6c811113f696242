"""Data sets of TensorFlow Datasets, read as the TFRecord files that `tfds build` has written."""

import os
from typing import Any

from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE, Peers
from hvdgan.cli.types import Fit
from hvdgan.data.base.scan_cache import NO_SCANS, ScanCache
from hvdgan.data.base.source import Size, Source
from hvdgan.data.formats.tfrecord_scan import Features
from hvdgan.data.sources.tfrecords import RecordSource


def open_tfds(
    name: str,
    *,
    image_size: Size,
    channels: int,
    fit: Fit | None = None,
    paired: bool,
    peers: Peers = ALONE,
    scans: ScanCache = NO_SCANS,
) -> Source:
    """The training images of a data set that `tfds build` has prepared.

    Nothing is downloaded, since a run should not wait hours for it.

    Args:
        name: value of `--data`, `tfds:` and a name for tfds.builder, such as `tfds:celeb_a`.
        image_size: height and width in pixels; one number for both, or two.
        channels: 1 or 3.
        fit: way in which images of another aspect ratio are brought to this size; None: they are refused.
        paired: True if each image comes with an input, side by side.
        peers: the ranks that open it together.
        scans: cache of the index.

    Raises:
        UserError: the package or the data set is missing, or it holds no images.
    """
    try:
        import tensorflow_datasets as tfds  # an optional package, which takes seconds to load
    except Exception as error:  # it is missing, or one of its requirements has another version
        raise UserError(
            f"--data {name}: TensorFlow Datasets cannot be imported ({error}); pip install 'hvdgan[tfds]'"
        ) from error
    info, split = _training_images(name, tfds)
    image, label = _features(name, info.features, tfds)
    return RecordSource(
        name,
        [os.fspath(path) for path in split.filepaths],
        Features(image=image, label=label),
        image_size=image_size,
        channels=channels,
        fit=fit,
        paired=paired,
        class_names=info.features[label].names if label else None,
        peers=peers,
        scans=scans,
    )


def _training_images(name: str, tfds: Any) -> tuple[Any, Any]:
    """The description of a data set, and its split for training, which is prepared as TFRecord files."""
    chosen = name.partition(":")[2]
    try:
        builder = tfds.builder(chosen)
        split = builder.info.splits.get("train")
    except Exception as error:  # of many types, some with pages of text
        raise UserError(f"--data {name}: error of TensorFlow Datasets: {_first_line(error)}") from error
    if not split:
        raise UserError(
            f"--data {name}: no training images in {builder.data_dir}; prepare them once with "
            f"`tfds build {chosen}`, and set TFDS_DATA_DIR if they are in another folder"
        )
    if split.filename_template.filetype_suffix != "tfrecord":
        raise UserError(
            f"--data {name}: prepared as {split.filename_template.filetype_suffix}; expected tfrecord, the default "
            f"of `tfds build`"
        )
    return builder.info, split


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _features(name: str, features: Any, tfds: Any) -> tuple[str, str | None]:
    """The names of the image and of its class: the first feature of each kind."""
    kinds = (tfds.features.Image, tfds.features.ClassLabel)
    images, labels = ([key for key in features if isinstance(features[key], kind)] for kind in kinds)
    if not images:
        raise UserError(f"--data {name}: none of its features is an image; it has {', '.join(features)}")
    return "image" if "image" in images else images[0], labels[0] if labels else None
