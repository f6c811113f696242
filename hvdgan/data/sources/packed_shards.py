"""Opens packed shards, which hvdgan.prepare makes: a source of images, or of arrays."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE, Peers, on_all
from hvdgan.cli.types import Fit
from hvdgan.data.arrays import conditions
from hvdgan.data.base.source import PictureSource, Size, Source, fingerprint, sides
from hvdgan.data.formats.manifest import ARRAYS_VERSION, CONDITIONS
from hvdgan.data.formats.pixels import WrongAspect, arrays_to_pixels, refuse_aspect
from hvdgan.data.formats.shard_reader import ShardReader
from hvdgan.data.sources.packed_arrays import PackedArrays

_SIZE = 32
"""default height and width of square pictures"""


def open_shards(config: Config, *, paired: bool, peers: Peers = ALONE) -> Source:
    """Open a folder that hvdgan.prepare made, of pictures or of arrays.

    Args:
        config: settings of the data.
        paired: True if each image must come with an input.
        peers: the ranks; each calls this.

    Raises:
        UserError: the manifest does not match the files, or the settings do not match the manifest.
        RunError: the ranks do not see the same shards.
    """
    with _named():
        files = ShardReader(Path(config.data), peers)
        if files.manifest["format_version"] == ARRAYS_VERSION:
            return PackedArrays(files, config, paired=paired, peers=peers)
    height, width = size_in(files.manifest)
    size = config.image_size or (_SIZE if height == width else (height, width))
    pictures = ShardSource(
        config.data,
        image_size=size,
        channels=config.channels,
        fit=config.fit,
        paired=paired,
        peers=peers,
        files=files,
    )
    if not config.arrays.conditions or config.arrays.condition_table is not None:
        return pictures
    packed = on_all(lambda: files.array(CONDITIONS), peers, f"--data {config.data}: its conditions")
    return conditions.with_conditions(pictures, *conditions.of_manifest(config, files.manifest, packed))


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Begin the errors of a folder with the flag that named it."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error) if str(error).startswith("--") else f"--data {error}") from error


class ShardSource(PictureSource):
    """The images of a folder that hvdgan.prepare made.

    `fetch` reads a record by its offset, verifies and decodes it. Memory holds 16 bytes and a label per image. Images
    of another size or number of channels are converted as those of a folder.

    Args:
        name: value of `--data`, the path of the folder.
        image_size: height and width in pixels; one number for both, or two; None: those of the shards.
        channels: 1, 3, or None for those of the shards.
        fit: way in which images of another aspect ratio are brought to this size; None: they are refused.
        paired: True if each image must come with an input.
        peers: the ranks that open the folder together.
        files: the opened shards, or None to open them here.

    Raises:
        UserError: the manifest does not match the files, or only one of the recipe and the shards has pairs.
        RunError: the ranks do not see the same shards.
    """

    batched = prepared = True

    def __init__(
        self,
        name: str,
        *,
        image_size: Size | None,
        channels: int | None,
        fit: Fit | None = None,
        paired: bool = False,
        peers: Peers = ALONE,
        files: ShardReader | None = None,
    ) -> None:
        with _named():
            self._files = files = files or ShardReader(Path(name), peers)
            labels = on_all(files.labels, peers, f"--data {name}: its labels")
        manifest = files.manifest
        _check_pairs(name, bool(manifest["pairs"]), paired)
        size = size_in(manifest)
        self._stored = (*size, manifest["channels"])
        image_size = image_size or size
        try:
            refuse_aspect(self._stored[1], self._stored[0], image_size, fit)
        except WrongAspect as error:
            raise UserError(f"--data {name}: each image has {error}") from error
        from hvdgan.data.formats.shard_decoder import Decoder  # loads TensorFlow, which hvdgan.prepare does not need

        self._decoder = Decoder(manifest["encoding"], self._stored, paired)
        channels = channels or manifest["channels"]
        super().__init__(
            name=name,
            image_size=image_size,
            channels=channels,
            fit=fit,
            fingerprint=fingerprint(image_size, channels, [b"pairs" if paired else b"images", *files.checksums()], fit),
            labels=labels,
            class_names=manifest["class_names"],
            paired=paired,
        )
        if self._stored == self.layout.shape:
            self.decode = self._decoder.images

    def __len__(self) -> int:
        return len(self._files)

    def fetch(self, index: int) -> np.ndarray:
        """Read one image, as any source does.

        Raises:
            RunError: the record cannot be read or is damaged; the message names the file and the record.
        """
        (record,) = self._files.read(np.array([index]))
        try:
            image = self._decoder(record)
        except Exception as error:  # of TensorFlow's types
            raise self._files.failure(index, f"cannot be decoded: {' '.join(str(error).split())}") from error
        return image if self._stored == self.layout.shape else self._converted(image)

    def fetch_records(self, indices: np.ndarray) -> list[bytes]:
        return self._files.read(indices)

    def own_size(self, index: int) -> tuple[int, int]:
        return self._stored[0], self._stored[1]

    def key(self, index: int) -> bytes:
        return self._files.key(index)

    def digest(self, index: int) -> bytes:
        return self._files.digest(index)

    def stamp(self) -> list[Any] | None:
        return self._files.stamp()

    def _converted(self, image: np.ndarray) -> np.ndarray:
        halves = np.stack(np.split(image, 2, axis=-1) if self.paired else [image])
        return np.concatenate(arrays_to_pixels(halves, self.image_size, self.channels, self.fit), axis=-1)


def size_in(manifest: dict[str, Any]) -> tuple[int, int]:
    """Height and width of the images in a manifest, which names one number for squares."""
    size = manifest["image_size"]
    return sides(size if isinstance(size, int) else tuple(size))


def _check_pairs(name: str, stored: bool, asked: bool) -> None:
    if stored and not asked:
        raise UserError(f"--data {name}: its shards hold pairs, and this recipe takes single images")
    if asked and not stored:
        raise UserError(
            f"--data {name}: its shards hold single images, and this recipe takes pairs; "
            "prepare them with python -m hvdgan.prepare --pairs"
        )
