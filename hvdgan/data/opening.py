"""Opens the source that `--data` names."""

import dataclasses
import os
from pathlib import Path

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE, Peers
from hvdgan.data.base.scan_cache import NO_SCANS, ScanCache
from hvdgan.data.base.source import Source
from hvdgan.data.formats.manifest import is_prepared
from hvdgan.data.formats.tfrecord_scan import Features
from hvdgan.data.sources.arrays import ArraySource
from hvdgan.data.sources.builtin import DigitsSource, SyntheticSource
from hvdgan.data.sources.folder import FolderSource
from hvdgan.data.sources.keras_datasets import KerasSource
from hvdgan.data.sources.packed_shards import ShardSource
from hvdgan.data.sources.pairs import ArrayPairs, OutlinePairs
from hvdgan.data.sources.tfds import open_tfds
from hvdgan.data.sources.tfrecords import RecordSource, files_named, shape_of

EXPECTED = (
    "digits, synthetic, a folder of images or of packed shards, an .npy/.npz array, TFRecord files (a path, or a "
    "pattern in quotes such as 'data/*.tfrecord'), keras:mnist and the like, or tfds:NAME"
)


def open_source(config: Config, *, paired: bool = False, peers: Peers = ALONE, scans: ScanCache = NO_SCANS) -> Source:
    """Open what `--data` names.

    `digits` and `synthetic` are words; a folder of that name is opened as `./digits`.

    Args:
        config: settings, of which data, image_size, channels, max_bad_fraction and those of TFRecords are used.
        paired: True if each image must come with an input. Pairs of a folder: see FolderSource; of an array: see
            ArrayPairs; of TFRecords: see Features; all other images have their outlines as inputs.
        peers: the ranks; each calls this, and they share the work.
        scans: cache of what an earlier start found in the files.

    Raises:
        UserError: the data do not exist, hold no images, or too many of these are broken.
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
        return open_tfds(config.data, image_size=size, channels=channels or 3, paired=paired, peers=peers, scans=scans)
    try:
        opened = _open_files(config, paired, peers, scans)
        problem = "of no known kind" if os.path.exists(config.data) else "no such file or folder"
    except OSError as error:
        opened, problem = None, str(error.strerror)
    if opened is None:
        raise UserError(f"--data {config.data}: {problem}; expected {EXPECTED}")
    return opened


def _open_files(config: Config, paired: bool, peers: Peers, scans: ScanCache) -> Source | None:
    """The source at a path; None if the path does not exist or is of an unknown kind."""
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
    named = config.tfrecord
    shape = shape_of(named.shape, paired=paired)
    features = Features(named.image or "image", named.label, named.input, shape)
    if shape and features.input:
        raise UserError(f"--tfrecord-input {features.input}: goes with encoded images, not with --tfrecord-shape")
    if features.input and not paired:
        features = dataclasses.replace(features, input=None)
    return RecordSource(
        data, files, features, image_size=size, channels=channels or 3, paired=paired, peers=peers, scans=scans
    )
