"""A source of arrays of any shape and type, as they are stored; `mapped` turns them into what networks see."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdgan.data.axes import Axes
from hvdgan.data.kinds import map_of, spread
from hvdgan.data.source import Source, fingerprint_of
from hvdgan.data.store import Container, Stored
from hvdgan.values.missing import Missing
from hvdgan.values.sample_values import Layout, SampleValues
from hvdgan.values.value_map import ValueMap


@dataclasses.dataclass(frozen=True)
class Samples:
    """An array of samples, or of their inputs, with the names of its axes."""

    stored: Stored
    axes: Axes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample, channels last."""
        return self.axes.shape(self.stored.shape[1:])

    @property
    def space(self) -> tuple[str, ...]:
        """Names of a sample's dimensions in space, where the file names them."""
        return tuple(dim for dim, axis in zip(self.stored.dims[1:], self.axes.order, strict=False) if axis != "C")

    def assumed_axes(self, flag: str) -> Sequence[str]:
        """The axes if they are assumed, in words, with the flag that names them; else nothing."""
        if not self.axes.assumed:
            return ()
        count = self.shape[-1]
        return [f"axes {self.axes.order} assumed: {count} channel{'s' * (count > 1)} ({flag})"]

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Some samples, (B, *shape) of the stored type.

        Args:
            indices: numbers of the samples, int64 (B,).

        Raises:
            BadImage: one of them cannot be read, or has a number that the file declares to be missing or not valid.
            RunError: the file has changed or the disk has failed.
        """
        return self.axes.arranged(self.stored.read(indices))

    def map_of(self, given: str | None, flag: str) -> ValueMap:
        """The map of the numbers: the declared one, or that of floats within [0, 1] or [-1, 1]; see kinds.map_of()."""
        some = self.axes.arranged(self.stored.readable(spread(self.stored.shape[0])))
        return map_of(given, self.stored, some, flag=flag, channels=self.stored.names_of(self.shape[-1]))

    def missing(self, fill: float) -> Missing:
        """The places that have no number in any of 64 samples spread over the data, and the number in their stead."""
        some = self.stored.readable(spread(self.stored.shape[0]))
        if some.dtype.kind != "f":
            return Missing(fill)
        mask = np.isnan(self.axes.arranged(some)).all(axis=0)
        return Missing(fill, mask if mask.any() else None)


class ArraySource(Source):
    """The samples of an array, each with an input of its own if there are inputs.

    Samples are returned with the numbers and the type that the file has. The fingerprint covers shapes, types, labels,
    conditions, constants and 64 samples spread over the data: it distinguishes data sets, not single numbers.

    Args:
        name: value of `--data`.
        container: the file or files, with what is known of bad ones and of classes.
        images: the samples.
        inputs: their inputs, or None.
        layout: shapes of a record.
        values: maps of the parts.
        labels, conditions, constants: arguments of Source.
    """

    def __init__(
        self,
        name: str,
        container: Container,
        images: Samples,
        inputs: Samples | None = None,
        *,
        layout: Layout,
        values: SampleValues,
        labels: np.ndarray | None = None,
        conditions: np.ndarray | None = None,
        constants: np.ndarray | None = None,
    ) -> None:
        self._container = container
        self.parts = [images] if inputs is None else [inputs, images]
        """the inputs, if there are some, and the samples"""
        self.batched = container.batched
        self.prepared = all(part.stored.prepared for part in self.parts)
        self.assumed_axes = [*images.assumed_axes("--axes"), *(inputs.assumed_axes("--input-axes") if inputs else ())]
        places = spread(images.stored.shape[0])
        told_by: list[bytes] = []
        for part in self.parts:
            told_by.append(f"{part.stored.shape} {part.stored.dtype.str} {part.axes.order}".encode())
            told_by.append(np.ascontiguousarray(part.stored.readable(places)).tobytes())
        if container.identity:
            told_by.append(container.identity)
        told_by += [b"" if each is None else each.tobytes() for each in (labels, conditions, constants)]
        super().__init__(
            name=name,
            layout=layout,
            dtype=np.result_type(*(part.stored.dtype for part in self.parts)),
            fingerprint=fingerprint_of(b"array", told_by),
            values=values,
            labels=labels,
            class_names=container.class_names,
            conditions=conditions,
            constants=constants,
            bad_files=container.bad_files,
        )

    def __len__(self) -> int:
        return self.parts[-1].stored.shape[0]

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        read = [part.read(indices) for part in self.parts]
        return read[0] if len(read) == 1 else self.layout.joined(read[0], read[1], self.dtype)

    def key(self, index: int) -> bytes:
        return self.parts[-1].stored.key(index)

    def digest(self, index: int) -> bytes:
        return self.parts[-1].stored.digest(index)

    def named(self, index: int) -> str:
        return self.parts[-1].stored.named(index)

    def stamp(self) -> list[Any] | None:
        return self._container.stamp()
