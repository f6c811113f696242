"""Reads TFRecord files, each record a tf.train.Example, as pictures or as arrays.

The ranks index the files together at the start, a file each; a record's checksum is verified whenever it is read.

Reference: https://www.tensorflow.org/tutorials/load_data/tfrecord; tensorflow/core/example/example.proto.
"""

import functools
import glob
import gzip
import hashlib
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import google_crc32c
import numpy as np

from hvdgan.data.arrays import samples_of, with_conditions
from hvdgan.data.bad_files import OF_ONE_FILE, BadImage, printable
from hvdgan.data.numpy_files import NumpyArray
from hvdgan.data.pixels import SUFFIXES, EncodedPictures
from hvdgan.data.samples import Samples, fingerprint_of, of_pictures
from hvdgan.data.sharing import pack, share_out, unpack
from hvdgan.data.store import Container, DataRequest, Store, failed
from hvdgan.errors import RunError, UserError, in_one_line
from hvdgan.settings.config import Config

_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")
_HEADER, _CHECKSUM = 12, 4
"""bytes of a length with its checksum, and of a payload's checksum"""
_TYPES = ("float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
_AXES = {1: "C", 2: "", 3: "HWC", 4: "DHWC"}
"""axes by their number, as --tfrecord-shape has them; two may be those of a sequence, too"""
_CHANNELS = {1, 3, 4}
_TRIED = 8
"""records at the beginning, of which one must be a picture"""


def files_named(data: str) -> list[str]:
    """The TFRecord files that `--data` names by a path or a pattern, sorted; an empty list if it names none."""
    if not glob.has_magic(data) or os.path.exists(data):
        name = os.path.basename(data).lower()
        is_known = name.endswith(_SUFFIXES) or ".tfrecord-" in name
        return [data] if is_known and os.path.isfile(data) else []
    files = sorted(path for path in glob.glob(data, recursive=True) if os.path.isfile(path))
    if files and files[0].lower().endswith(SUFFIXES):
        folder = os.path.commonpath([os.path.dirname(file) for file in files]) or "."
        raise UserError(f"--data {data}: this pattern names pictures; name their folder instead: --data {folder}")
    return files


def open_records(request: DataRequest, files: Sequence[str]) -> Samples:
    """Open TFRecord files of encoded pictures, or with --tfrecord-shape of raw ones, or with its type of arrays."""
    config, records = request.config, Records(request, files)
    if config.tfrecord.shape is not None:
        return samples_of(request, records, "images")
    pictures = RecordPictures(records, request)
    try:
        pictures.readable(np.arange(min(_TRIED, len(records))))
    except UserError as error:
        raise UserError(f"{error}; raw pictures need --tfrecord-shape, and arrays --tfrecord-dtype, too") from error
    source = of_pictures(
        request,
        pictures,
        told_by=[b"tfrecord", repr((records.features, request.paired)).encode(), records.identity],
        labels=records.labels,
        paths=records.paths,
    )
    return with_conditions(source, config, records, pictures)


class Records(Container):
    """The records of TFRecord files, in the order of the files' names; safe to read from several threads.

    Its arrays are `images` and `inputs`, whatever their features are named, and the conditions.
    """

    has_names = True
    paths = ()  # the identity covers the names, and every byte

    def __init__(self, request: DataRequest, files: Sequence[str]) -> None:
        config, paired, in_order = request.config, request.paired, request.in_order
        super().__init__(config.data)
        named, self._files, self._in_order = config.tfrecord, list(files), in_order
        self.features = {"images": named.image or "image"}
        """names of the features of a sample and, if it has one of its own, of its input"""
        if paired and named.input is not None:
            self.features["inputs"] = named.input
        self._shapes, self._dtype, self.holds_arrays = _shapes(config, paired), named.dtype, named.dtype is not None
        self._label = named.label
        self._numbers = () if config.arrays.condition_table is not None else config.arrays.conditions
        reader = functools.partial(_reader_of, in_order=in_order)
        self._reader = functools.lru_cache(maxsize=2 if in_order else 256)(reader)
        where = f"--data {self.data}"
        found = share_out(self._files, lambda some: [*map(self._index, some)], request.peers, where)
        ends, labels, numbers, digests = zip(*found, strict=True)
        each = [unpack(some, np.int64) for some in ends]
        self._firsts = np.cumsum([0, *map(len, each)])
        """the index of each file's first record, and of the one after the last"""
        if not self._firsts[-1]:
            raise UserError(f"{where}: {len(files)} TFRecord file(s) without a record; expected images")
        self._ends = np.concatenate(each)
        self._begins = np.concatenate([np.concatenate([[0], some])[:-1] for some in each]).astype(np.int64)
        all_labels = np.concatenate([unpack(some, np.int32) for some in labels])
        self.labels = None if self._label is None else all_labels
        self._conditions = np.concatenate([unpack(some, np.float64) for some in numbers])
        # It covers neither the name of the label feature nor the folder, which depends on the machine.
        parts = [os.path.basename(file).encode(errors="surrogateescape") for file in files]
        parts += [self._firsts.tobytes(), self._begins.tobytes(), all_labels.tobytes(), *map(str.encode, digests)]
        self.identity = fingerprint_of(b"tfrecords", parts).encode()

    def __len__(self) -> int:
        return len(self._ends)

    def names(self) -> list[str]:
        return [*self._shapes, *self._numbers]

    def get(self, name: str) -> Store:
        if name not in self._shapes:
            numbers = self._conditions.reshape(len(self), -1)[:, self._numbers.index(name)]
            return NumpyArray(f"{self.data}:{name}", numbers)
        return RecordArray(self, self.features[name], self._shapes[name], self._dtype)

    def named(self, index: int) -> str:
        """The name of a record, for messages and as its key."""
        file, place = self._place(index)
        return f"{printable(os.path.basename(file))}[{place}]"

    def example(self, index: int) -> Any:
        """The features of a record, a mapping of names to tf.train.Feature."""
        file, place = self._place(index)
        begin, end = int(self._begins[index]), int(self._ends[index])
        try:
            record = self._reader(file)(begin, end - begin)
            payload, checksum = record[_HEADER:-_CHECKSUM], record[-_CHECKSUM:]
            if len(record) == end - begin and checksum == _masked_crc(payload):
                return _parsed(payload)
            reason = "its checksum does not match" if len(record) == end - begin else "the file ends before the record"
        except ValueError as error:
            raise BadImage(self.named(index), str(error)) from error
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or in_one_line(error)
        raise failed(f"{self.data}: {printable(file)}, record {place}", reason)

    def _place(self, index: int) -> tuple[str, int]:
        """The file, and the number of the record within it."""
        file = int(np.searchsorted(self._firsts, index, side="right")) - 1
        return self._files[file], index - int(self._firsts[file])

    def _index(self, file: str) -> list[Any]:
        """Ends of a file's records, their labels and conditions, and a digest of their checksums, as JSON.

        Only the first record is read as a whole, unless there are labels or conditions to be found.
        """
        where = f"--data {self.data}: {printable(file)}"
        ends, labels, numbers, digest = list[int](), list[float](), list[float](), hashlib.sha256()
        try:
            read = self._reader(file)
            header = read(0, _HEADER)
            while header:
                what = f"{where}, record {len(ends)}"
                if not _is_header(header):
                    raise UserError(f"{what}: no record begins here" if ends else self._refusal(where, file))
                begin, length = (ends[-1] if ends else 0) + _HEADER, struct.unpack_from("<Q", header)[0]
                is_read = not ends or self._label is not None or bool(self._numbers)
                skipped = 0 if is_read else length
                # The checksum of a record and the header of the next one are read together.
                content = read(begin + skipped, length - skipped + _CHECKSUM + _HEADER)
                payload, rest = content[: length - skipped], content[length - skipped :]
                if len(rest) < _CHECKSUM:
                    raise UserError(f"{what}: the file ends before the record does")
                if is_read:
                    if rest[:_CHECKSUM] != _masked_crc(payload):
                        raise UserError(f"{what}: its checksum does not match")
                    features = _parsed(payload)
                    for part, name in self.features.items() if not ends else ():
                        flag = "--tfrecord-image" if part == "images" else "--tfrecord-input"
                        _refuse_missing(f"{flag} {name}: {what}", features, name)
                    if self._label is not None:
                        labels.append(_number(f"--tfrecord-label {self._label}: {what}", features, self._label, True))
                    numbers += [_number(f"--conditions {name}: {what}", features, name) for name in self._numbers]
                digest.update(rest[:_CHECKSUM])
                ends.append(begin + length + _CHECKSUM)
                header = rest[_CHECKSUM:]
        except ValueError as error:
            raise UserError(f"{what}: {error}") from error
        except (OSError, EOFError, zlib.error) as error:
            is_of_one_file = getattr(error, "errno", None) in OF_ONE_FILE
            reason = getattr(error, "strerror", None) or f"damaged: {in_one_line(error)}"
            raise (UserError if is_of_one_file else RunError)(f"{where}: {reason}") from error
        found = np.array(ends, np.int64), np.array(labels, np.int32), np.array(numbers, np.float64)
        return [*(pack(each) for each in found), digest.hexdigest()]

    def _refusal(self, where: str, file: str) -> str:
        """The error for a file that does not begin with a record."""
        if not self._in_order and _is_gzip(file):
            return (
                f"{where}: compressed with GZIP, so its records cannot be read in any order; pack them once with "
                "hvdgan prepare, or decompress the file, as gunzip does"
            )
        return (
            f"{where}: no record begins at its first byte; expected TFRecords, or for a pattern HDF5 or NetCDF files "
            "(.h5, .nc)"
        )


class RecordPictures(EncodedPictures):
    """Pictures in TFRecords, encoded as PNG, JPEG, WebP, BMP, GIF or TIFF."""

    def __init__(self, records: Records, request: DataRequest) -> None:
        super().__init__(len(records), request)
        self._records = records

    def files(self, index: int) -> list[tuple[str, bytes]]:
        features, named = self._records.example(index), self.named(index)
        files: list[tuple[str, bytes]] = []
        for name in [*self._records.features.values()][::-1]:
            values = [*features[name].bytes_list.value] if name in features else []
            if len(values) != 1:
                raise BadImage(named, f"it has no feature {name} of one value in bytes")
            files.append((f"{named} {name}" if len(self._records.features) == 2 else named, values[0]))
        return files

    def key(self, index: int) -> bytes:
        return self.named(index).encode()

    def named(self, index: int) -> str:
        return self._records.named(index)


class RecordArray(Store):
    """A feature of all records, of one shape: lists of floats or integers, or raw bytes; without a type pictures."""

    def __init__(self, records: Records, feature: str, shape: tuple[int, ...], dtype: str | None) -> None:
        self._channels_first = dtype is None and shape[-1] not in _CHANNELS
        turned = (*shape[1:], shape[0]) if self._channels_first else shape
        name, axes = f"{records.data}:{feature}", _AXES[len(shape)] if dtype else ""
        super().__init__(name, (len(records), *turned), dtype or np.uint8, axes=axes, prepared=False)
        self._records, self._feature, self._shape = records, feature, shape

    def read(self, indices: np.ndarray) -> np.ndarray:
        out = np.empty((len(indices), *self._shape), self.dtype)
        for place, index in enumerate(indices.tolist()):
            features = self._records.example(index)
            try:
                if self._feature not in features:
                    raise ValueError(f"it has no feature {self._feature}")
                out[place] = self._converted(features[self._feature]).reshape(self._shape)
            except ValueError as error:
                raise BadImage(self.named(index), str(error)) from error
        return np.moveaxis(out, 1, -1) if self._channels_first else out

    def named(self, index: int) -> str:
        return self._records.named(index)

    def key(self, index: int) -> bytes:
        return self.named(index).encode()

    def _converted(self, feature: Any) -> np.ndarray:
        """The numbers of a tf.train.Feature, in the type that the flag names."""
        kind, count = feature.WhichOneof("kind"), int(np.prod(self._shape))
        if kind == "bytes_list":
            size = count * self.dtype.itemsize
            if [*map(len, feature.bytes_list.value)] != [size]:
                found = ", ".join(f"{len(value):,}" for value in feature.bytes_list.value) or "no"
                expected = f"expected {size:,} bytes of {self.dtype} {self._shape}"
                raise ValueError(f"{found} bytes in {self._feature}; {expected}")
            return np.frombuffer(feature.bytes_list.value[0], self.dtype.newbyteorder("<"))
        if kind == "int64_list":
            numbers = np.fromiter(feature.int64_list.value, np.int64)
        else:
            # Serialized, the floats follow each other as they do in memory; a loop over 40,000 would take 2 ms.
            packed = feature.float_list.SerializeToString()
            numbers = np.frombuffer(packed[len(packed) - 4 * len(feature.float_list.value) :], "<f4")
        if len(numbers) != count:
            raise ValueError(f"{len(numbers):,} numbers in {self._feature}; expected those of shape {self._shape}")
        with np.errstate(all="ignore"):
            converted = numbers.astype(self.dtype)
            same = np.array_equal(converted.astype(numbers.dtype), numbers, equal_nan=numbers.dtype.kind == "f")
        if not same:
            raise ValueError(f"numbers from {numbers.min():g} to {numbers.max():g} are not exact in {self.dtype}")
        return converted


def _shapes(config: Config, paired: bool) -> dict[str, tuple[int, ...]]:
    """Shapes of arrays or of raw pictures and of their inputs; none for encoded pictures."""
    named = config.tfrecord
    is_array = named.dtype is not None
    if is_array and named.dtype not in _TYPES:
        raise UserError(f"--tfrecord-dtype {named.dtype}: expected {', '.join(_TYPES)}")
    if is_array and named.shape is None:
        raise UserError(f"--tfrecord-dtype {named.dtype}: give the shape, too, such as --tfrecord-shape 20,20,9")
    if is_array and paired and named.input is None:
        raise UserError("--tfrecord-input: name the feature that holds the inputs, since the recipe takes pairs")
    if named.shape is None:
        return {}
    shapes = {"images": _shape("--tfrecord-shape", named.shape, is_array)}
    if paired and named.input is not None:
        shapes["inputs"] = _shape("--tfrecord-input-shape", named.input_shape or named.shape, is_array)
    return shapes


def _shape(flag: str, text: str, is_array: bool) -> tuple[int, ...]:
    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    shape = tuple(int(part) for part in parts if part.isdecimal() and int(part) > 0)
    is_shape = len(shape) == len(parts) and len(shape) in _AXES
    if is_array and not is_shape:
        raise UserError(f"{flag} {text}: expected one to four lengths, channels last, such as 20,20,9 or 51,51,25,1")
    if not is_array and not (is_shape and len(shape) == 3 and {shape[0], shape[-1]} & _CHANNELS):
        raise UserError(
            f"{flag} {text}: expected height, width and 1, 3 or 4 channels such as 32,32,3, or channels first; arrays "
            "of other shapes need --tfrecord-dtype"
        )
    return shape


def _reader_of(file: str, *, in_order: bool) -> Callable[[int, int], bytes]:
    """A function of begin and count that reads bytes of a file; threads may call it at once."""
    if in_order and _is_gzip(file):
        opened, lock = gzip.GzipFile(file), threading.Lock()

        def decompress(begin: int, count: int) -> bytes:
            with lock:
                opened.seek(begin)
                return opened.read(count)

        return decompress
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)

    def read(begin: int, count: int) -> bytes:
        return os.pread(descriptor, count, begin)

    weakref.finalize(read, os.close, descriptor)  # never while a thread reads from it
    return read


def _is_gzip(file: str) -> bool:
    with open(file, "rb") as opened:
        head = opened.read(_HEADER)
    return head.startswith(b"\x1f\x8b") and not _is_header(head)  # a record's length may begin with the same bytes


def _is_header(head: bytes) -> bool:
    return len(head) == _HEADER and head[8:] == _masked_crc(head[:8])


def _masked_crc(content: bytes) -> bytes:
    """CRC-32C, rotated and shifted as the format demands, since a CRC of data that contain CRCs would be weak."""
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def _parsed(payload: bytes) -> Any:
    """The features of a serialized tf.train.Example."""
    import tensorflow as tf  # takes seconds, and only records need it
    from google.protobuf.message import DecodeError

    try:
        return tf.train.Example.FromString(payload).features.feature
    except DecodeError as error:
        raise ValueError("not a tf.train.Example") from error


def _refuse_missing(what: str, features: Any, name: str) -> None:
    if name not in features:
        raise UserError(f"{what} has the features {', '.join(map(printable, sorted(features))) or 'none'}")


def _number(where: str, features: Any, name: str, is_label: bool = False) -> float:
    """The one number of a feature; a label is an integer of 32 bits."""
    _refuse_missing(where, features, name)
    found = [*features[name].int64_list.value, *([] if is_label else features[name].float_list.value)]
    if len(found) != 1 or not np.isfinite(found[0]) or (is_label and not -(2**31) <= found[0] < 2**31):
        raise UserError(f"{where}: not one {'integer of 32 bits' if is_label else 'finite number'}")
    return found[0]
