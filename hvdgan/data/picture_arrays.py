"""Sources of 8-bit pictures in arrays, and of pairs of them."""

from typing import Any

import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.cli.types import Fit
from hvdgan.data.kinds import spread
from hvdgan.data.pixels import WrongAspect, arrays_to_pixels, refuse_aspect
from hvdgan.data.source import PictureSource, Size, fingerprint
from hvdgan.data.store import Container, Stored


class PictureArraySource(PictureSource):
    """A uint8 array of pictures (N, H, W, C) with 1, 3 or 4 channels (the fourth is opacity), or (N, H, W) for grey.

    The fingerprint covers shape, type, labels and 64 pictures spread over the array: it distinguishes data sets, not
    single pixels.

    Args:
        name: value of `--data`.
        stored: the array.
        image_size: height and width in pixels, to which pictures are resized; one number for both, or two; None: those
            of the array.
        channels: 1, 3, or None for those of the array (4 becomes 3).
        fit: way in which pictures of another aspect ratio are brought to this size; None: they are refused.
        labels: classes of the pictures, int32 (N,), or None.
        half: half of the array's pictures to use, 0 (left) or 1 (right); None: the whole pictures.
        container: the files that the array lies in.

    Raises:
        UserError: the pictures have another aspect ratio than the wanted one.
    """

    def __init__(
        self,
        name: str,
        stored: Stored,
        *,
        container: Container,
        image_size: Size | None,
        channels: int | None,
        fit: Fit | None = None,
        labels: np.ndarray | None = None,
        half: int | None = None,
    ) -> None:
        self._container, self._stored = container, stored
        self.batched, self.prepared = container.batched, stored.prepared
        self.array_shape = stored.shape if len(stored.shape) == 4 else (*stored.shape, 1)
        height, width = self.array_shape[1:3]
        self._columns = slice(None)
        if half is not None:
            width //= 2
            self._columns = slice(half * width, (half + 1) * width)
        image_size = image_size or (height if height == width else (height, width))
        try:
            refuse_aspect(width, height, image_size, fit)
        except WrongAspect as error:
            raise UserError(f"--data {name}: each picture has {error}") from error
        channels = channels or (1 if self.array_shape[-1] == 1 else 3)
        header = f"array {self.array_shape} {stored.dtype.str}".encode()
        sample = stored.readable(spread(self.array_shape[0])).tobytes()
        parts = [header, sample, b"" if labels is None else labels.tobytes()]
        if container.identity:
            parts.append(container.identity)
        super().__init__(
            name=name,
            image_size=image_size,
            channels=channels,
            fit=fit,
            fingerprint=fingerprint(image_size, channels, parts, fit),
            labels=labels,
            class_names=container.class_names,
            bad_files=container.bad_files,
        )

    def __len__(self) -> int:
        return self.array_shape[0]

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        return arrays_to_pixels(self._pictures(indices), self.image_size, self.channels, self.fit)

    def own_size(self, index: int) -> tuple[int, int]:
        return self.array_shape[1], self.array_shape[2]

    def key(self, index: int) -> bytes:
        if self._container.has_names:
            return self._stored.key(index)
        return np.ascontiguousarray(self._pictures(np.array([index]))[0]).tobytes()

    def digest(self, index: int) -> bytes:
        return self._stored.digest(index) if self._container.has_names else super().digest(index)

    def named(self, index: int) -> str:
        return self._stored.named(index)

    def stamp(self) -> list[Any] | None:
        return self._container.stamp()

    def _pictures(self, indices: np.ndarray) -> np.ndarray:
        """uint8 (B, H, W, C) of the array's own size."""
        return self._stored.read(indices).reshape(-1, *self.array_shape[1:])[:, :, self._columns]


class ArrayPairs(PictureSource):
    """Inputs and images in two arrays, or in one of twice-as-wide pictures.

    In the latter case, the left half of each holds the input and the right half the image. All else is as in
    PictureArraySource.

    Args:
        name: value of `--data`.
        images: array of the images, or of both.
        inputs: array of the inputs; None: they are the left halves.
        container: the files that the arrays lie in.
        image_size, channels, fit, labels: arguments of PictureArraySource; channels None: 3 if the arrays differ.

    Raises:
        UserError: the arrays hold no pairs.
    """

    def __init__(
        self,
        name: str,
        images: Stored,
        inputs: Stored | None,
        *,
        container: Container,
        image_size: Size | None,
        channels: int | None,
        fit: Fit | None = None,
        labels: np.ndarray | None = None,
    ) -> None:
        height, width = images.shape[1:3]
        if (inputs is None and width != 2 * height) or (inputs is not None and inputs.shape[:3] != images.shape[:3]):
            described = "" if inputs is None else f" of images and {inputs.shape} of inputs"
            raise UserError(
                f"--data {name}: shape {images.shape}{described}; pairs are two arrays, inputs and images, of equal "
                "number, height and width, or one array whose width is twice its height, with an input in the left "
                "half and its image in the right"
            )
        both = (inputs or images, images)
        widths = {each.shape[-1] if len(each.shape) == 4 else 1 for each in both}
        shared: dict[str, Any] = {"container": container, "image_size": image_size, "channels": channels}
        shared |= {"fit": fit, "labels": labels}
        if len(widths) > 1:
            shared["channels"] = channels or 3
        halves = (None, None) if inputs is not None else (0, 1)
        self._inputs, self._images = (
            PictureArraySource(name, each, half=half, **shared) for each, half in zip(both, halves, strict=True)
        )
        parts = [part.fingerprint.encode() for part in (self._inputs, self._images)]
        self.batched, self.prepared = self._images.batched, self._images.prepared and self._inputs.prepared
        super().__init__(
            name=name,
            image_size=self._images.image_size,
            channels=self._images.channels,
            fit=fit,
            fingerprint=fingerprint(self._images.image_size, self._images.channels, [b"pairs", *parts], fit),
            labels=labels,
            class_names=container.class_names,
            paired=True,
        )
        self.array_shape = self._images.array_shape

    def __len__(self) -> int:
        return len(self._images)

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        return np.concatenate([self._inputs.fetch_batch(indices), self._images.fetch_batch(indices)], axis=-1)

    def key(self, index: int) -> bytes:
        return self._images.key(index)

    def digest(self, index: int) -> bytes:
        return self._images.digest(index)

    def named(self, index: int) -> str:
        return self._images.named(index)

    def stamp(self) -> list[Any] | None:
        return self._images.stamp()
