"""A source of images in an .npy or .npz file."""

import logging
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from hvdgan.cli.errors import UserError
from hvdgan.data.base.scan_cache import identity
from hvdgan.data.base.source import BadImage, Source, fingerprint
from hvdgan.data.formats.pixels import arrays_to_pixels, to_8_bits

_IMAGE_NAMES = ("images", "x", "arr_0")
_SAMPLE = 64
LARGE_BYTES = 2**30

logger = logging.getLogger(__name__)


class ArraySource(Source):
    """An array of images (N, H, W, C) with 1, 3 or 4 channels (the fourth is opacity), or (N, H, W) for grey.

    Values are uint8; uint16, which are scaled to 8 bits; or floating point. For the latter, 64 images spread over the
    array decide on the range: [0, 1] if none of their values is below 0, else [-1, 1], with a tolerance of half an
    8-bit step. Any other image with a value outside of this range, or with a NaN, is a bad image.

    An .npy file and an uncompressed .npz are memory-mapped; every rank holds a compressed .npz in memory. The images of
    an .npz are its only array, or the one called `images`, `x` or `arr_0`; it may also have an integer array `labels`
    (N,).

    The fingerprint covers shape, type, labels and the same 64 images: it distinguishes data sets, not single pixels.

    Args:
        name: value of `--data`, the path of the file.
        image_size: height and width in pixels, to which images are cropped and resized.
        channels: 1, 3, or None for those of the array (4 becomes 3).
        member: name of the array in an .npz; None: as above.
        half: half of the array's images to use, 0 (left) or 1 (right); None: the whole images.

    Raises:
        UserError: the file cannot be read, or is not such an array.
    """

    batched = prepared = True

    def __init__(
        self,
        name: str,
        *,
        image_size: int,
        channels: int | None,
        member: str | None = None,
        half: int | None = None,
    ) -> None:
        self._array, labels, self._stamp = _open(name, member)
        _check_array(name, self._array)
        if self._array.ndim == 3:
            self._array = self._array[..., None]
        spread = np.unique(np.linspace(0, len(self._array) - 1, _SAMPLE).astype(np.int64))
        sample = self._array[spread]
        self._low = _low(name, sample)  # of both halves, since one may use only a part of the range
        self.array_shape = self._array.shape
        if half is not None:
            width = self.array_shape[2] // 2
            self._array = self._array[:, :, half * width : (half + 1) * width]
        channels = channels or (1 if self._array.shape[-1] == 1 else 3)
        header = f"array {self.array_shape} {self._array.dtype.str}".encode()
        labels = None if labels is None else _check_labels(name, labels, len(self._array))
        super().__init__(
            name=name,
            image_size=image_size,
            channels=channels,
            fingerprint=fingerprint(
                image_size, channels, [header, sample.tobytes(), b"" if labels is None else labels.tobytes()]
            ),
            labels=labels,
        )

    def __len__(self) -> int:
        return len(self._array)

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        return arrays_to_pixels(self._in_8_bits(indices), self.image_size, self.channels)

    def key(self, index: int) -> bytes:
        return np.ascontiguousarray(self._array[index]).tobytes()

    def stamp(self) -> list[Any] | None:
        return self._stamp

    def _in_8_bits(self, indices: np.ndarray) -> np.ndarray:
        """uint8 (B, H, W, C) of the array's own size."""
        values = self._array[indices]
        if values.dtype == np.uint8:
            return values
        if values.dtype.kind == "u":
            return to_8_bits(values)
        slack = _slack(self._low)
        inside = ((values >= self._low - slack) & (values <= 1 + slack)).all(axis=(1, 2, 3))
        if not inside.all():
            first = int(indices[inside.argmin()])
            raise BadImage(f"{self.name}[{first}]", f"values outside [{self._low}, 1], or not finite")
        return np.rint((values.astype(np.float32) - self._low) * (255 / (1 - self._low))).clip(0, 255).astype(np.uint8)


def array_names(name: str) -> list[str]:
    """The names of the arrays in an .npz; an empty list for any other file."""
    try:
        with zipfile.ZipFile(name) as archive:
            return [member.removesuffix(".npy") for member in archive.namelist()]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):  # opening it raises an error that says why
        return []


def _open(name: str, member: str | None) -> tuple[np.ndarray, np.ndarray | None, list[Any]]:
    """Images and labels of a file, memory-mapped if possible, and facts that change when the file changes."""
    try:
        before = identity(name)
        if zipfile.is_zipfile(name):
            return *_open_npz(name, member), before
        return npy_format.open_memmap(name, mode="r"), None, before
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(
            f"--data {name}: too large for memory: {error}; "
            "np.savez in place of np.savez_compressed, or an .npy file, is memory-mapped"
        ) from error
    except Exception as error:  # damaged headers and archives raise many types
        detail = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"--data {name}: cannot be read as a NumPy array: {detail}; "
            "expected an array of numbers, written by np.save or np.savez"
        ) from error


def _open_npz(name: str, member: str | None) -> tuple[np.ndarray, np.ndarray | None]:
    with zipfile.ZipFile(name) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        others = [other for other in members if other != "labels"]
        chosen = others if len(others) == 1 else [known for known in _IMAGE_NAMES if known in members]
        if member is not None:
            chosen = [member]
        if not chosen:
            raise UserError(
                f"--data {name}: found the arrays {', '.join(sorted(members)) or '(none)'}; "
                f"expected a single one besides labels, or one called {', '.join(_IMAGE_NAMES)}"
            )
        images = _open_member(name, archive, members[chosen[0]])
        labels = _read_member(archive, members["labels"]) if "labels" in members else None
    return images, labels


def _open_member(name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Map an array that is not compressed in the archive; read any other."""
    if member.compress_type != zipfile.ZIP_STORED:
        if member.file_size > LARGE_BYTES:
            logger.warning(
                "--data %s: compressed, so every rank holds its %.1f GB in memory; "
                "files of np.save and np.savez are memory-mapped",
                name,
                member.file_size / 1e9,
            )
        return _read_member(archive, member)
    with archive.open(member) as file:
        shape, fortran_order, dtype = _read_header(file)
        header_bytes = file.tell()
    with open(name, "rb") as file:
        # Name and extra field of the local header may have other sizes than those in the directory.
        file.seek(member.header_offset + 26)
        name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    offset = member.header_offset + 30 + name_bytes + extra_bytes + header_bytes
    return np.memmap(name, dtype, "r", offset, shape, "F" if fortran_order else "C")


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, True for Fortran's order, and type; the file is then at the first value."""
    readers: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype]]] = {
        (1, 0): npy_format.read_array_header_1_0,
        (2, 0): npy_format.read_array_header_2_0,
    }
    version = npy_format.read_magic(file)
    if version not in readers:
        raise ValueError(f"version {version} of the .npy format")
    shape, fortran_order, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return shape, fortran_order, dtype


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        return npy_format.read_array(file, allow_pickle=False)


def _check_array(name: str, array: np.ndarray) -> None:
    """Raise a UserError unless the array can hold images."""
    if array.dtype.kind != "f" and not (array.dtype.kind == "u" and array.dtype.itemsize <= 2):
        raise UserError(
            f"--data {name}: values of type {array.dtype}; expected uint8 (0 to 255), uint16 (0 to 65535), "
            "or floating point in [0, 1] or [-1, 1]; convert it, such as with array.astype(np.uint8)"
        )
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[-1] not in (1, 3, 4)):
        hint = "; channels come last, see np.moveaxis" if array.ndim == 4 and array.shape[1] in (1, 3, 4) else ""
        raise UserError(
            f"--data {name}: array of shape {array.shape}; expected (N, H, W, C) with C 1, 3 or 4, or (N, H, W){hint}"
        )
    if array.size == 0:
        raise UserError(f"--data {name}: array of shape {array.shape}: it holds no images; expected at least one")


def _low(name: str, sample: np.ndarray) -> int:
    """The lower end of the range of floating-point values, 0 or -1; 0 for integers."""
    if sample.dtype.kind != "f":
        return 0
    finite = sample[np.isfinite(sample)]
    if not finite.size:
        raise UserError(f"--data {name}: none of the {len(sample)} images in a sample has a finite value")
    low, high = float(finite.min()), float(finite.max())
    for end in (0, -1):
        if low >= end - _slack(end) and high <= 1 + _slack(end):
            return end
    raise UserError(
        f"--data {name}: floating-point values from {low:g} to {high:g}; expected [0, 1] or [-1, 1]; "
        "rescale them, or save values of 0 to 255 as uint8"
    )


def _slack(low: int) -> float:
    """Tolerance for values outside of [low, 1], which earlier processing may leave: half an 8-bit step."""
    return 0.5 * (1 - low) / 255


def _check_labels(name: str, labels: np.ndarray, num_images: int) -> np.ndarray:
    """The labels as int32 (N,)."""
    if labels.shape != (num_images,) or labels.dtype.kind not in "iu":
        raise UserError(
            f"--data {name}: labels of shape {labels.shape} and type {labels.dtype}; "
            f"expected one integer for each of {num_images} images"
        )
    limits = np.iinfo(np.int32)
    if labels.min() < limits.min or labels.max() > limits.max:
        raise UserError(f"--data {name}: labels from {labels.min()} to {labels.max()}; expected values of int32")
    return labels.astype(np.int32)
