"""Sources as --data names them or of numbered pictures, and the batches that a rank reads of them."""

from collections.abc import Container, Sequence

import numpy as np

from hvdgan.data import BadFile, BadImage, Samples, open_source
from hvdgan.data.batches import Batches
from hvdgan.data.samples import of_pictures
from hvdgan.data.store import DataRequest, Store
from hvdgan.settings.config import Config


def opened(data, *, paired=False, **changes) -> Samples:
    """A source of 8 x 8 pixels, cropped to squares, with the defaults of all other settings."""
    return open_source(Config(data=str(data), **{"image_size": 8, "fit": "crop", **changes}), paired=paired)


def all_of(source: Samples) -> np.ndarray:
    """All samples in their order."""
    return source.fetch_batch(np.arange(len(source)))["images"]


def batches_of(source, *, global_batch_size, rank=0, size=1, start_step=0, position=None, **changes):
    """The slices of one rank, from a step or from a position on; ranks have slices of one size."""
    bounds = [number * global_batch_size // size for number in (rank, rank + 1)]
    position = start_step * global_batch_size if position is None else position
    options = {"seed": 0, "threads": 2, "prefetch": 1, "max_bad_fraction": 0.0, "device": None}
    return Batches(
        source, global_batch_size=global_batch_size, places=tuple(bounds), position=position, **(options | changes)
    )


class Numbered(Store):
    """Pictures filled with their own index, of which some cannot be read; it notes what is read."""

    def __init__(self, num_images: int = 5000, *, broken: Container[int] = ()) -> None:
        super().__init__("numbered", (num_images, 2, 2, 1), np.uint8)
        self.broken = broken
        self.taken: list[int] = []

    def read(self, indices: np.ndarray) -> np.ndarray:
        return np.stack([self._picture(index) for index in indices.tolist()])

    def _picture(self, index: int) -> np.ndarray:
        self.taken.append(index)
        if index in self.broken:
            raise BadImage(f"image {index}", "broken")
        return np.full((2, 2, 1), index % 256, np.uint8)


def numbered(num_images: int = 5000, *, bad_files: Sequence[tuple[str, str]] = (), **others) -> Samples:
    """Numbered pictures as samples, with labels, and files that were found broken on opening, with the reason."""
    return of_pictures(
        DataRequest(config=Config(data="numbered")),
        Numbered(num_images, **others),
        told_by=[],
        labels=np.arange(num_images, dtype=np.int32) * 2,
        bad_files=[BadFile(*each) for each in bad_files],
    )
