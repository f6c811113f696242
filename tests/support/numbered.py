"""A source of images that are filled with their own index."""

from collections.abc import Callable, Container, Sequence

import numpy as np

from hvdgan.data import BadImage
from hvdgan.data.source import PictureSource


class Numbered(PictureSource):
    """Images filled with their own index; it notes what is read.

    Args:
        num_images: number of images.
        broken: indices of images that cannot be read.
        batched: whether many are fetched at once.
        bad_files: files that were found broken on opening, with the reason.
        before: called with the index before each image is fetched.
    """

    def __init__(
        self,
        num_images: int = 5000,
        *,
        broken: Container[int] = (),
        batched: bool = False,
        bad_files: Sequence[tuple[str, str]] = (),
        before: Callable[[int], None] = lambda index: None,
    ) -> None:
        labels = np.arange(num_images, dtype=np.int32) * 2
        super().__init__(name="numbered", image_size=2, channels=1, fingerprint="", labels=labels, bad_files=bad_files)
        self.num_images, self.broken, self.batched, self.before = num_images, broken, batched, before
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.num_images

    def key(self, index: int) -> bytes:
        return str(index).encode()

    def fetch(self, index: int) -> np.ndarray:
        self.read.append(index)
        self.before(index)
        if index in self.broken:
            raise BadImage(f"image {index}", "broken")
        return np.full((2, 2, 1), index % 256, np.uint8)
