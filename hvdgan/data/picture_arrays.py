"""Arrays of 8-bit pictures, brought to one size and number of channels."""

import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.cli.types import Fit
from hvdgan.data.pixels import WrongAspect, arrays_to_pixels, refuse_aspect
from hvdgan.data.store import Size, Store, sides


class ResizedStore(Store):
    """A uint8 store of pictures (N, H, W, C) with 1, 3 or 4 channels (the fourth is opacity), or (N, H, W) for grey."""

    def __init__(
        self,
        name: str,
        stored: Store,
        *,
        image_size: Size | None,
        channels: int | None,
        fit: Fit | None = None,
        half: int | None = None,
        has_names: bool = False,
    ) -> None:
        self._stored, self._fit, self._has_names = stored, fit, has_names
        self._shape = stored.shape[1:] if len(stored.shape) == 4 else (*stored.shape[1:], 1)
        height, width = self._shape[:2]
        self._columns = slice(None)
        if half is not None:
            width //= 2
            self._columns = slice(half * width, (half + 1) * width)
        self.size = sides(image_size or (height, width))
        """height and width of a picture"""
        try:
            refuse_aspect(width, height, self.size, fit)
        except WrongAspect as error:
            raise UserError(f"--data {name}: each picture has {error}") from error
        shape = (stored.shape[0], *self.size, channels or (1 if self._shape[-1] == 1 else 3))
        super().__init__(name, shape, np.uint8, prepared=stored.prepared)

    def read(self, indices: np.ndarray) -> np.ndarray:
        return arrays_to_pixels(self._pictures(indices), self.size, self.shape[-1], self._fit)

    def own_size(self, index: int) -> tuple[int, int]:
        return self._shape[0], self._shape[1]

    def key(self, index: int) -> bytes:
        if self._has_names:
            return self._stored.key(index)
        return np.ascontiguousarray(self._pictures(np.array([index]))[0]).tobytes()

    def digest(self, index: int) -> bytes:
        return self._stored.digest(index) if self._has_names else super().digest(index)

    def named(self, index: int) -> str:
        return self._stored.named(index)

    def _pictures(self, indices: np.ndarray) -> np.ndarray:
        """uint8 (B, H, W, C) of the array's own size."""
        return self._stored.read(indices).reshape(-1, *self._shape)[:, :, self._columns]


def refuse_unpaired(name: str, images: Store, inputs: Store | None) -> None:
    """Refuse arrays that hold no pairs: an input for each image, or pictures twice as wide as high."""
    height, width = images.shape[1:3]
    if (inputs is None and width != 2 * height) or (inputs is not None and inputs.shape[0] != images.shape[0]):
        described = "" if inputs is None else f" of images and {inputs.shape} of inputs"
        raise UserError(
            f"--data {name}: shape {images.shape}{described}; pairs are two arrays of equal number, inputs and images, "
            "or one array whose width is twice its height, with an input in the left half and its image in the right"
        )
