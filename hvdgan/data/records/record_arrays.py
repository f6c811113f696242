"""Arrays in TFRecords: lists of floats or integers, or raw bytes, of one shape and type."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import Peers
from hvdgan.data.arrays import conditions
from hvdgan.data.arrays.axes import Axes, axes_of
from hvdgan.data.arrays.source import ArraySource, Samples
from hvdgan.data.arrays.stored import Container, Stored
from hvdgan.data.base.aligned_memory import room
from hvdgan.data.base.scan_cache import ScanCache
from hvdgan.data.base.source import BadImage, fingerprint_of
from hvdgan.data.formats.tf_example import features_of, numbers_in, single_bytes
from hvdgan.data.formats.tfrecord_scan import Features
from hvdgan.data.records.record_reader import RecordReader
from hvdgan.values.sample_values import Layout, SampleValues

_TYPES = ("float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
_AXES = {1: "C", 2: "HW", 3: "HWC", 4: "DHWC"}


class RecordFiles(Container):
    """The features of TFRecords as arrays.

    Args:
        records: the records.
        kinds: shape and type of each feature by its name.
    """

    has_names = True

    def __init__(self, records: RecordReader, kinds: dict[str, tuple[tuple[int, ...], np.dtype]]) -> None:
        super().__init__(records.name)
        self.records, self._kinds = records, kinds
        self.identity = fingerprint_of(b"tfrecords", records.parts).encode()

    def names(self) -> list[str]:
        return list(self._kinds)

    def get(self, name: str) -> "RecordArray":
        return RecordArray(self.records, name, *self._kinds[name])

    def stamp(self) -> list[Any]:
        return []  # the fingerprint covers the names, and every byte


class RecordArray(Stored):
    """A feature of all records.

    Args:
        records: the records.
        feature: name of the feature.
        shape: shape of one array.
        dtype: type of its numbers, which no value may lose by.
    """

    def __init__(self, records: RecordReader, feature: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        super().__init__(f"{records.name}:{feature}", (len(records), *shape), dtype, prepared=False)
        self._records, self._feature = records, feature
        self._count = int(np.prod(shape))

    def read(self, indices: np.ndarray) -> np.ndarray:
        out = room(len(indices), self.shape[1:], self.dtype)
        for place, index in enumerate(indices.tolist()):
            content = self._records.payload(index)
            try:
                out[place] = self._numbers(content).reshape(self.shape[1:])
            except ValueError as error:
                raise BadImage(self.named(index), str(error)) from error
        return out

    def named(self, index: int) -> str:
        return self._records.named(index)

    def key(self, index: int) -> bytes:
        return self.named(index).encode()

    def _numbers(self, content: bytes) -> np.ndarray:
        """The numbers of an Example, in the type that the flag names.

        Raises:
            ValueError: the feature is missing, or has another number or another kind of values.
        """

        def read(offset: int, count: int) -> bytes:
            return content[offset : offset + count]

        spans = {name: (first, past) for name, first, past in features_of(read, len(content))}
        if self._feature not in spans:
            raise ValueError(f"it has no feature {self._feature}")
        first, past = spans[self._feature]
        numbers = numbers_in(content, first, past)
        if numbers is None:
            numbers = self._raw(content, single_bytes(read, first, past))
        if len(numbers) != self._count:
            raise ValueError(f"{len(numbers):,} numbers in {self._feature}; expected those of shape {self.shape[1:]}")
        with np.errstate(all="ignore"):
            converted = numbers.astype(self.dtype)
            same = np.array_equal(converted.astype(numbers.dtype), numbers, equal_nan=numbers.dtype.kind == "f")
        if not same:
            raise ValueError(f"numbers from {numbers.min():g} to {numbers.max():g} are not exact in {self.dtype}")
        return converted

    def _raw(self, content: bytes, span: tuple[int, int] | None) -> np.ndarray:
        size = self._count * self.dtype.itemsize
        if span is None or span[1] - span[0] != size:
            found = "no single value" if span is None else f"{span[1] - span[0]:,} bytes"
            raise ValueError(f"{found} in {self._feature}; expected {size:,} bytes of {self.dtype} {self.shape[1:]}")
        return np.frombuffer(content, self.dtype.newbyteorder("<"), self._count, span[0])


def open_arrays(
    config: Config, files: Sequence[str], chosen: Sequence[str], *, paired: bool, peers: Peers, scans: ScanCache
) -> ArraySource:
    """Open TFRecord files of arrays.

    Args:
        config: settings of the data.
        files: paths of the files.
        chosen: features of one number each that describe a sample.
        paired: True if each sample must come with an input.
        peers: the ranks; each calls this.
        scans: cache of the index.

    Raises:
        UserError: the flags do not fit together or do not fit the files, or a map is unclear.
        RunError: the ranks do not see the same files, or the disk or the network has failed.
    """
    named, settings = config.tfrecord, config.arrays
    kinds = _kinds(config, paired)
    image, inputs = named.image or "image", named.input if paired else None
    features = Features(image, named.label, inputs, kinds[image][0], named.dtype, tuple(chosen))
    container = RecordFiles(RecordReader(config.data, files, features, peers, scans), kinds)
    own = _samples(container, image, settings.axes, "--axes")
    its = None if inputs is None else _samples(container, inputs, settings.input_axes, "--input-axes")
    try:
        maps = {"images": own.map_of(settings.values, "--values")}
        if its is not None:
            maps["inputs"] = its.map_of(settings.input_values, "--input-values")
        numbers = container.records.conditions
        if numbers is not None:
            maps["conditions"] = conditions.map_of(settings.condition_values, chosen)
        return ArraySource(
            config.data,
            container,
            own,
            its,
            layout=Layout(own.shape, None if its is None else its.shape),
            values=SampleValues(**maps),
            labels=container.records.labels,
            conditions=numbers,
        )
    except BadImage as bad:
        raise UserError(f"--data {config.data}: {bad}; expected the same in every record") from bad


def _kinds(config: Config, paired: bool) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and type of the arrays by the names of their features."""
    named = config.tfrecord
    if named.dtype not in _TYPES:
        raise UserError(f"--tfrecord-dtype {named.dtype}: expected {', '.join(_TYPES)}")
    if named.shape is None:
        raise UserError(
            f"--tfrecord-dtype {named.dtype}: give the shape of an array too, such as --tfrecord-shape 20,20,9"
        )
    if config.arrays.constants is not None:
        raise UserError("--constants: TFRecords have no fields that all samples share; pack them from another file")
    if paired and named.input is None:
        raise UserError("--tfrecord-input: name the feature that holds the inputs, since the recipe takes pairs")
    dtype, shape = np.dtype(named.dtype), _shape(named.shape, "--tfrecord-shape")
    kinds = {named.image or "image": (shape, dtype)}
    if paired:
        its = shape if named.input_shape is None else _shape(named.input_shape, "--tfrecord-input-shape")
        kinds[str(named.input)] = (its, dtype)
    return kinds


def _shape(text: str, flag: str) -> tuple[int, ...]:
    numbers = [part.strip() for part in text.replace("x", ",").split(",")]
    if not all(number.isdecimal() and int(number) > 0 for number in numbers) or len(numbers) > 4:
        raise UserError(f"{flag} {text}: expected one to four lengths, channels last, such as 20,20,9 or 51,51,25,1")
    return tuple(map(int, numbers))


def _samples(container: RecordFiles, feature: str, axes: str | None, flag: str) -> Samples:
    stored = container.get(feature)
    if axes is None:
        return Samples(stored, Axes(_AXES[len(stored.shape) - 1]))
    return Samples(stored, axes_of(stored.shape, axes, flag=flag, where=f"--data {stored.name}"))
