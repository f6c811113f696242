"""A source of the images in TFRecord files of any origin, by an index of their records."""

import glob
import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE, Peers
from hvdgan.cli.types import Fit
from hvdgan.data.arrays import conditions
from hvdgan.data.base.scan_cache import NO_SCANS, ScanCache
from hvdgan.data.base.sharing import share_out
from hvdgan.data.base.source import BadImage, PictureSource, Size, Source, fingerprint
from hvdgan.data.formats.images import read_halves, read_image, read_partners, read_size
from hvdgan.data.formats.pairing import refuse_single_images, sample_of
from hvdgan.data.formats.pixels import WrongAspect, arrays_to_pixels, refuse_aspect
from hvdgan.data.formats.tf_example import features_of, single_bytes
from hvdgan.data.formats.tfrecord_scan import Features
from hvdgan.data.records import record_arrays
from hvdgan.data.records.record_reader import RecordReader
from hvdgan.data.sources.array_files import refuse_picture_flags

SUFFIXES = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")


def open_records(
    config: Config, files: Sequence[str], *, paired: bool, size: Size, peers: Peers = ALONE, scans: ScanCache = NO_SCANS
) -> Source:
    """Open TFRecord files of pictures, or with --tfrecord-dtype of arrays.

    Args:
        config: settings of the data.
        files: paths of the files.
        paired: True if each sample must come with an input.
        size: height and width of pictures, in pixels.
        peers: the ranks; each calls this.
        scans: cache of the index.

    Raises:
        UserError: the flags do not fit together, or do not fit the files.
        RunError: the ranks do not see the same files, or the disk or the network has failed.
    """
    named, arrays = config.tfrecord, config.arrays
    chosen = arrays.conditions if arrays.condition_table is None else ()
    if named.dtype is not None:
        made = record_arrays.open_arrays(config, files, chosen, paired=paired, peers=peers, scans=scans)
        refuse_picture_flags(config, made.layout.shape)
        return made
    if named.input_shape is not None:
        raise UserError(f"--tfrecord-input-shape {named.input_shape}: is for arrays; add --tfrecord-dtype")
    shape = shape_of(named.shape, paired=paired)
    if shape and named.input:
        raise UserError(f"--tfrecord-input {named.input}: goes with encoded images, not with --tfrecord-shape alone")
    inputs = named.input if paired else None
    features = Features(named.image or "image", named.label, inputs, shape, conditions=chosen)
    source = RecordSource(
        config.data,
        files,
        features,
        image_size=size,
        channels=config.channels or 3,
        fit=config.fit,
        paired=paired,
        peers=peers,
        scans=scans,
    )
    numbers = source.records.conditions
    if numbers is None:
        return source
    return conditions.with_conditions(source, numbers, conditions.map_of(arrays.condition_values, chosen))


def files_named(data: str) -> list[str]:
    """The TFRecord files that `--data` names by a path or a pattern, sorted; an empty list if it names none."""
    if glob.has_magic(data) and not os.path.exists(data):
        return sorted(path for path in glob.glob(data, recursive=True) if os.path.isfile(path))
    name = os.path.basename(data).lower()
    spoken_of = name.endswith(SUFFIXES) or ".tfrecord-" in name
    return [data] if spoken_of and os.path.isfile(data) else []


class RecordSource(PictureSource):
    """The records of TFRecord files, in the order of the files' names, each a tf.train.Example.

    `fetch` reads a record and verifies its checksum. The fingerprint covers the labels and all checksums, and so every
    byte.

    Args:
        name: value of `--data`.
        files: paths of the files.
        features: names of the features that hold image, label and input.
        image_size: height and width in pixels; one number for both, or two.
        channels: 1 or 3.
        fit: way in which images of another aspect ratio are brought to this size; None: they are refused.
        paired: True if each image comes with an input.
        class_names: names of the labels, or None if they are not known.
        peers: the ranks that open the files together.
        scans: cache of the index.

    Raises:
        UserError: a file is not a TFRecord file, is damaged, lacks a feature, may not be read, or holds
            no pairs for a recipe of pairs.
        RunError: the ranks do not see the same files, or the disk or the network has failed.
    """

    def __init__(
        self,
        name: str,
        files: Sequence[str],
        features: Features,
        *,
        image_size: Size,
        channels: int,
        fit: Fit | None = None,
        paired: bool = False,
        class_names: Sequence[str] | None = None,
        peers: Peers = ALONE,
        scans: ScanCache = NO_SCANS,
    ) -> None:
        self._features = features
        self.records = RecordReader(name, files, features, peers, scans)
        what = repr((features.image, features.input, features.shape, paired)).encode()
        super().__init__(
            name=name,
            image_size=image_size,
            channels=channels,
            fit=fit,
            fingerprint=fingerprint(image_size, channels, [b"tfrecord", what, *self.records.parts], fit),
            labels=self.records.labels,
            class_names=class_names,
            paired=paired,
        )
        if paired and features.input is None and features.shape is None:
            self._refuse_single_images(peers)
        elif fit is None:
            self._refuse_aspects(peers)

    def __len__(self) -> int:
        return len(self.records)

    def fetch(self, index: int) -> np.ndarray:
        """Read one image, as any source does.

        Raises:
            RunError: the record cannot be read, or its checksum differs; the message names the file and the record.
        """
        named = self.named(index)
        sides = [self._features.image] if self._features.input is None else [self._features.input, self._features.image]
        files = self._files_in(index, sides)
        if self._features.shape is not None:
            return self._raw(files[0].getvalue(), named)
        if len(files) == 2:
            return read_partners(files, [f"{named} {side}" for side in sides], self.image_size, self.channels, self.fit)
        if self.paired:
            return read_halves(files[0], named, self.image_size, self.channels)
        return read_image(files[0], named, self.image_size, self.channels, self.fit)

    def key(self, index: int) -> bytes:
        return self.named(index).encode()

    def stamp(self) -> list[Any] | None:
        return []  # the fingerprint covers the names, and how many records each file has

    def _files_in(self, index: int, sides: Sequence[str]) -> list[io.BytesIO]:
        """The values of some features of a record, as files."""
        contents = _values(self.records.payload(index), sides)
        if missing := [side for side, content in zip(sides, contents, strict=True) if content is None]:
            raise BadImage(self.named(index), f"it has no feature {missing[0]} of one value in bytes")
        return [io.BytesIO(content) for content in contents if content is not None]

    def _refuse_single_images(self, peers: Peers) -> None:
        """Refuse images that hold no pairs, by the headers of a sample."""
        places, sizes = self._sample_of_sizes(peers)
        otherwise = "a feature of its own for the input (--tfrecord-input)"
        refuse_single_images(f"--data {self.name}", [self.named(place) for place in places], sizes, otherwise)

    def _refuse_aspects(self, peers: Peers) -> None:
        """Refuse images of another aspect ratio than the wanted one, by the headers of a sample."""
        shape = self._features.shape
        if shape is not None:
            height, width = shape[:2] if shape[-1] in (1, 3, 4) else shape[1:]
            places: list[int] = [0]
            sizes: list[tuple[int, int] | None] = [(width // (2 if self.paired else 1), height)]
        else:
            places, sizes = self._sample_of_sizes(peers)
        for place, size in zip(places, sizes, strict=True):
            if size is not None:
                try:
                    refuse_aspect(*size, self.image_size, None)
                except WrongAspect as error:
                    raise UserError(f"--data {self.name}: {self.named(place)} has {error}") from error

    def _sample_of_sizes(self, peers: Peers) -> tuple[list[int], list[tuple[int, int] | None]]:
        """The numbers of a sample of images, and their widths and heights; None for one that cannot be read."""
        places = sample_of(len(self))
        sizes = share_out(
            [str(place) for place in places],
            lambda some: [self._size(int(place)) for place in some],
            peers,
            f"--data {self.name}",
        )
        return places, sizes

    def _size(self, index: int) -> tuple[int, int] | None:
        """Width and height of an encoded image; None if it cannot be read."""
        try:
            return read_size(self._files_in(index, [self._features.image])[0], self.named(index))
        except BadImage:
            return None

    def own_size(self, index: int) -> tuple[int, int] | None:
        if (shape := self._features.shape) is not None:
            height, width = shape[:2] if shape[-1] in (1, 3, 4) else shape[1:]
            return height, width
        size = self._size(index)
        return None if size is None else (size[1], size[0])

    def named(self, index: int) -> str:
        return self.records.named(index)

    def _raw(self, content: bytes, named: str) -> np.ndarray:
        shape = self._features.shape
        assert shape is not None
        if len(content) != int(np.prod(shape)):
            raise BadImage(named, f"{len(content):,} bytes; expected those of --tfrecord-shape {_text(shape)}")
        pixels = np.frombuffer(content, np.uint8).reshape(shape)
        if shape[-1] not in (1, 3, 4):
            pixels = np.moveaxis(pixels, 0, -1)
        sides = np.stack(np.split(pixels, 2, axis=1) if self.paired else [pixels])
        return np.concatenate(arrays_to_pixels(sides, self.image_size, self.channels, self.fit), axis=-1)


def shape_of(text: str | None, *, paired: bool) -> tuple[int, ...] | None:
    """The value of `--tfrecord-shape` as numbers.

    Raises:
        UserError: it is not the shape of an image.
    """
    if text is None:
        return None
    numbers = text.replace("x", ",").split(",")
    shape = tuple(int(number) for number in numbers if number.strip().isdecimal())
    if len(shape) != len(numbers) or len(shape) != 3 or min(shape) < 1 or not {shape[0], shape[-1]} & {1, 3, 4}:
        raise UserError(
            f"--tfrecord-shape {text}: expected height, width and 1, 3 or 4 channels such as 32,32,3, or channels first"
        )
    height, width = shape[:2] if shape[-1] in (1, 3, 4) else shape[1:]
    if paired and width != 2 * height:
        raise UserError(
            f"--tfrecord-shape {text}: a recipe of pairs takes images twice as wide as high, with the input in the "
            "left half and its image in the right"
        )
    return shape


def _values(payload: bytes, names: Sequence[str]) -> list[bytes | None]:
    """The bytes of some features; None for a feature that is missing or of another kind."""

    def read(offset: int, count: int) -> bytes:
        return payload[offset : offset + count]

    try:
        spans: dict[str, Any] = {name: span for name, *span in features_of(read, len(payload))}
        found = [single_bytes(read, *spans[name]) if name in spans else None for name in names]
    except ValueError:
        return [None] * len(names)
    return [None if span is None else payload[span[0] : span[1]] for span in found]


def _text(shape: tuple[int, ...]) -> str:
    return ",".join(str(number) for number in shape)
