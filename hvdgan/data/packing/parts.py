"""Parts of the images to pack, of a folder, an archive or an array, in a form that other processes can read."""

import abc
import dataclasses
import functools
import hashlib
import io
import os
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.data.base.source import Source, printable
from hvdgan.data.formats.images import read_halves, read_image, read_partners, read_size
from hvdgan.data.packing.archives import read_member
from hvdgan.data.records import files_named, open_records
from hvdgan.data.sources.array_files import open_arrays, without_maps
from hvdgan.data.sources.picture_arrays import ArrayPairs, PictureArraySource

NO_SIZE = "--image-size: expected the height and width of the images, such as 128 or 64,96 (pixels)"


@dataclasses.dataclass(frozen=True)
class Part(abc.ABC):
    """Some of the images, in a form that can be sent to another process.

    names: names of the images within the data.
    labels: classes of the images, or None.
    where: path of the folder, the archive or the array.
    places: each image's files, members of the archive, or index in the array.
    config: settings of the data, with the size and the channels of the images that are read.
    pairs: True if each image comes with an input.
    conditions: numbers that describe each image, k for each, or None.
    """

    names: list[str]
    labels: list[int] | None
    where: str
    places: Sequence[Any]
    config: Config
    pairs: bool
    conditions: list[list[float]] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def read(self, number: int) -> np.ndarray:
        """Image `number` of this part, uint8 (height, width, channels), with twice the channels for a pair.

        Raises:
            BadImage: it cannot be read, or has another aspect ratio and no --fit says what to do.
        """
        files, names = self._files(number), self._file_names(number)
        size, channels = self.config.image_size, self.config.channels
        assert size is not None and channels is not None
        if len(files) == 2:
            return read_partners(files, names, size, channels, self.config.fit)
        if self.pairs:
            return read_halves(files[0], names[0], size, channels)
        return read_image(files[0], names[0], size, channels, self.config.fit)

    def smallest_side(self, number: int) -> int:
        """The shorter side of the image before cropping and resizing, in pixels.

        Raises:
            BadImage: it cannot be read.
        """
        sizes = self.sizes(number)
        halved = 2 if self.pairs and len(sizes) == 1 else 1
        return min(min(width // halved, height) for width, height in sizes)

    def sizes(self, number: int) -> list[tuple[int, int]]:
        """Width and height of the upright image in each of its files, in pixels.

        Raises:
            BadImage: it cannot be read.
        """
        return [read_size(*file) for file in zip(self._files(number), self._file_names(number), strict=True)]

    def key(self, number: int) -> bytes | None:
        """The digest by which the image is held out; None if its name decides."""
        return None

    @abc.abstractmethod
    def _files(self, number: int) -> list[str | BinaryIO]: ...

    def _file_names(self, number: int) -> list[str]:
        return [printable(self.names[number])] * len(self.places[number])


class FolderPart(Part):
    """A part of a folder; places are tuples of paths below it."""

    def _files(self, number: int) -> list[str | BinaryIO]:
        return [os.path.join(self.where, file) for file in self.places[number]]

    def _file_names(self, number: int) -> list[str]:
        return [printable(file) for file in self.places[number]]


class ArchivePart(Part):
    """A part of a zip or tar archive; places are tuples of members, which are read into memory only."""

    def _files(self, number: int) -> list[str | BinaryIO]:
        return [io.BytesIO(read_member(self.where, member)) for member in self.places[number]]

    def _file_names(self, number: int) -> list[str]:
        return [printable(member.name) for member in self.places[number]]


class SourcePart(Part):
    """A part of the pictures in arrays or TFRecords; places are indices."""

    def read(self, number: int) -> np.ndarray:
        return self._source().fetch(self.places[number])

    def smallest_side(self, number: int) -> int:
        source = self._source()
        if not isinstance(source, PictureArraySource | ArrayPairs):
            raise UserError(f"--min-size: {self.where} holds TFRecords, of which all images are packed; leave it out")
        height, width = source.array_shape[1:3]
        return min(height, width)

    def key(self, number: int) -> bytes | None:
        key = self._source().key(self.places[number])
        return None if key == os.fsencode(self.names[number]) else hashlib.sha256(key).digest()

    def _source(self) -> Source:
        source = opened_source(self.config, self.pairs)
        assert source is not None
        return source

    def _files(self, number: int) -> list[str | BinaryIO]:
        raise NotImplementedError


@functools.lru_cache(maxsize=1)
def opened_source(config: Config, pairs: bool) -> Source | None:
    """The arrays or TFRecords that SRC names, opened once in each process; None if it names neither.

    Raises:
        UserError: they cannot be read, or what they hold is unclear.
    """
    try:
        arrays = open_arrays(config, paired=pairs, unmapped=True)
        if arrays is not None or not (files := files_named(config.data)):
            return arrays
        if config.tfrecord.dtype is None and config.image_size is None:
            raise UserError(NO_SIZE)
        return open_records(without_maps(config), files, paired=pairs, size=config.image_size or 1)
    except UserError as error:
        raise UserError(str(error).removeprefix("--data ")) from error
