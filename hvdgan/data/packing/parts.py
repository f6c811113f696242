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

from hvdgan.data.formats.images import read_halves, read_image, read_partners, read_size
from hvdgan.data.packing.archives import read_member
from hvdgan.data.source import printable
from hvdgan.data.sources.arrays import ArraySource
from hvdgan.data.sources.pairs import ArrayPairs


@dataclasses.dataclass(frozen=True)
class Part(abc.ABC):
    """Some of the images, in a form that goes to another process.

    names: of the images within the data.
    labels: their classes, where there are any.
    where: the folder, the archive or the array's file.
    places: for each image its file or files, its members of the archive, or its index in the array.
    image_size, channels: of what is read, in pixels.
    pairs: whether each image comes with an input.
    """

    names: list[str]
    labels: list[int] | None
    where: str
    places: Sequence[Any]
    image_size: int
    channels: int
    pairs: bool

    def read(self, number: int) -> np.ndarray:
        """Image `number` of this part, uint8 (image_size, image_size, channels), or twice the channels for a pair.

        Raises:
            BadImage: it cannot be read.
        """
        files, names = self._files(number), self._file_names(number)
        if len(files) == 2:
            return read_partners(files, names, self.image_size, self.channels)
        read = read_halves if self.pairs else read_image
        return read(files[0], names[0], self.image_size, self.channels)

    def smallest_side(self, number: int) -> int:
        """Of the image as it was, before cropping and resizing, in pixels.

        Raises:
            BadImage: it cannot be read.
        """
        sizes = self.sizes(number)
        halved = 2 if self.pairs and len(sizes) == 1 else 1
        return min(min(width // halved, height) for width, height in sizes)

    def sizes(self, number: int) -> list[tuple[int, int]]:
        """Width and height in pixels of the image's file, or of its files, as they are seen.

        Raises:
            BadImage: it cannot be read.
        """
        return [read_size(*file) for file in zip(self._files(number), self._file_names(number), strict=True)]

    def key(self, number: int) -> bytes | None:
        """What decides whether the image is held out, where that is not its name."""
        return None

    @abc.abstractmethod
    def _files(self, number: int) -> list[str | BinaryIO]: ...

    def _file_names(self, number: int) -> list[str]:
        return [printable(self.names[number])] * len(self.places[number])


class FolderPart(Part):
    """Of a folder: places are tuples of paths below it."""

    def _files(self, number: int) -> list[str | BinaryIO]:
        return [os.path.join(self.where, file) for file in self.places[number]]

    def _file_names(self, number: int) -> list[str]:
        return [printable(file) for file in self.places[number]]


class ArchivePart(Part):
    """Of a zip or tar archive: places are tuples of members, which are read into memory and nowhere else."""

    def _files(self, number: int) -> list[str | BinaryIO]:
        return [io.BytesIO(read_member(self.where, member)) for member in self.places[number]]

    def _file_names(self, number: int) -> list[str]:
        return [printable(member.name) for member in self.places[number]]


class ArrayPart(Part):
    """Of an array: places are indices."""

    def read(self, number: int) -> np.ndarray:
        return self._array().fetch(self.places[number])

    def smallest_side(self, number: int) -> int:
        height, width = self._array().array_shape[1:3]
        return min(height, width)

    def key(self, number: int) -> bytes | None:
        return hashlib.sha256(self._array().key(self.places[number])).digest()

    def _array(self) -> "ArraySource | ArrayPairs":
        return opened_array(self.where, self.image_size, self.channels, self.pairs)

    def _files(self, number: int) -> list[str | BinaryIO]:
        raise NotImplementedError


@functools.lru_cache(maxsize=1)
def opened_array(name: str, image_size: int, channels: int | None, pairs: bool) -> ArraySource | ArrayPairs:
    return (ArrayPairs if pairs else ArraySource)(name, image_size=image_size, channels=channels)
