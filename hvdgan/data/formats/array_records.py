"""Reads the arrays in the records of packed shards, straight into NumPy's memory where they are not compressed."""

import itertools
from collections.abc import Sequence

import numpy as np

from hvdgan.data.base.aligned_memory import room
from hvdgan.data.formats.array_codec import INPUT, SAMPLE, Encoding, decode_into, native, stored_type
from hvdgan.data.formats.shard_reader import ShardReader
from hvdgan.data.formats.tf_example import example, features_of, single_bytes
from hvdgan.data.formats.tfrecord import CHECKSUM, HEADER, RecordFile, checksum_of, framed, payload_of

Kind = tuple[tuple[int, ...], np.dtype]
"""shape and type of an array"""


class ArrayRecords:
    """Reads arrays from records; safe to call from several threads.

    A raw record has the same bytes around its arrays as every other one. It is read by one call of the system, which
    puts the arrays where they belong. Each record is verified by its checksum.

    Args:
        files: the shards.
        sample: shape and type of a sample.
        inputs: shape and type of its input, or None.
        encoding: raw or zlib.
    """

    def __init__(self, files: ShardReader, sample: Kind, inputs: Kind | None, encoding: Encoding) -> None:
        self._files = files
        self._kinds = {SAMPLE: sample} if inputs is None else {INPUT: inputs, SAMPLE: sample}
        self._encoding = encoding
        self._around: list[bytes] = []
        self._length = 0
        if encoding == "raw":
            self._around, self._length = _bytes_around([_bytes_of(kind) for kind in self._kinds.values()], self._kinds)

    def read(self, indices: np.ndarray) -> list[np.ndarray]:
        """The inputs (B, ...), if there are some, and the samples (B, ...).

        Args:
            indices: numbers of the records, int64 (B,).

        Raises:
            RunError: a record cannot be read or is damaged; the message names file and record.
        """
        arrays = [room(len(indices), shape, stored_type(dtype)) for shape, dtype in self._kinds.values()]
        work = self._read_raw if self._encoding == "raw" else self._read_zlib
        work(indices, arrays)
        return [native(array) for array in arrays]

    def _read_raw(self, indices: np.ndarray, arrays: list[np.ndarray]) -> None:
        rows = [array.reshape(len(indices), -1).view(np.uint8) for array in arrays]
        around = [np.empty(len(each), np.uint8) for each in self._around]
        checksum = np.empty(CHECKSUM, np.uint8)
        # Built for all records at once, since every microsecond counts that the function below takes for one.
        parts = [part for before, row in zip(around, rows, strict=True) for part in (itertools.repeat(before), row)]
        contents = list(zip(*parts, strict=False))
        first = self._around[0][HEADER:]

        def read(place: int, file: RecordFile, offset: int, length: int) -> None:
            if length != self._length:
                raise ValueError("its length differs")
            content = contents[place]
            file.read_into(offset, (*content, checksum))
            if [each.tobytes() for each in around] != self._around:
                raise ValueError("no record of these arrays begins here")
            if checksum_of((first, *content[1:])) != checksum.tobytes():
                raise ValueError("its checksum does not match")

        self._files.for_each(indices, read)

    def _read_zlib(self, indices: np.ndarray, arrays: list[np.ndarray]) -> None:
        def read(place: int, file: RecordFile, offset: int, length: int) -> None:
            payload = payload_of(file.read(offset, length))
            for (first, past), array in zip(_spans_in(payload, self._kinds), arrays, strict=True):
                decode_into(memoryview(payload)[first:past], array[place])

        self._files.for_each(indices, read)


def record_of(arrays: Sequence[bytes]) -> bytes:
    """The record of a sample: a tf.train.Example with the bytes of its input, if it has one, and its own."""
    names = (SAMPLE,) if len(arrays) == 1 else (INPUT, SAMPLE)
    return framed(example(dict(zip(names, arrays, strict=True))))


def arrays_in(payload: bytes, kinds: Sequence[Kind], encoding: Encoding) -> list[np.ndarray]:
    """The input, if there is one, and the sample of a record, in the stored types.

    Args:
        payload: the record without its frame.
        kinds: shapes and types of the input and the sample.
        encoding: raw or zlib.

    Raises:
        ValueError: the record is damaged.
    """
    names = (SAMPLE,) if len(kinds) == 1 else (INPUT, SAMPLE)
    arrays = [np.empty(shape, stored_type(dtype)) for shape, dtype in kinds]
    for (first, past), array in zip(_spans_in(payload, names), arrays, strict=True):
        if encoding == "zlib":
            decode_into(memoryview(payload)[first:past], array)
        else:
            array[...] = np.frombuffer(payload[first:past], array.dtype).reshape(array.shape)
    return arrays


def _bytes_of(kind: Kind) -> int:
    shape, dtype = kind
    return int(np.prod(shape)) * dtype.itemsize


def _bytes_around(sizes: Sequence[int], names: Sequence[str] | dict[str, Kind]) -> tuple[list[bytes], int]:
    """The bytes of a record before each array of these sizes, and the length of the record."""
    record = record_of([bytes(size) for size in sizes])
    spans = [(HEADER + first, HEADER + past) for first, past in _spans_in(record[HEADER:-CHECKSUM], names)]
    begins = [0, *(past for _, past in spans[:-1])]
    return [record[begin:first] for begin, (first, _) in zip(begins, spans, strict=True)], len(record)


def _spans_in(payload: bytes, names: Sequence[str] | dict[str, Kind]) -> list[tuple[int, int]]:
    """Begin and end of the value of each feature.

    Raises:
        ValueError: the record lacks one of them.
    """

    def read(offset: int, count: int) -> bytes:
        return payload[offset : offset + count]

    found = {name: single_bytes(read, first, past) for name, first, past in features_of(read, len(payload))}
    spans = [found.get(name) for name in names]
    if missing := [name for name, span in zip(names, spans, strict=True) if span is None]:
        raise ValueError(f"no feature {missing[0]} of one value in bytes")
    return [span for span in spans if span is not None]
