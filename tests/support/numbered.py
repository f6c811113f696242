"""Pictures that are filled with their own index."""

from collections.abc import Container, Sequence

import numpy as np

from hvdgan.data import BadFile, BadImage, Samples
from hvdgan.data.samples import of_pictures
from hvdgan.data.store import Store


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
        Numbered(num_images, **others),
        name="numbered",
        told_by=[],
        labels=np.arange(num_images, dtype=np.int32) * 2,
        bad_files=[BadFile(*each) for each in bad_files],
    )
