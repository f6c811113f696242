"""A source of arrays of any shape and type, as they are stored; `mapped` turns them into what networks see."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdgan.data.arrays.axes import Axes
from hvdgan.data.arrays.kinds import map_of, spread
from hvdgan.data.arrays.stored import Container, Stored
from hvdgan.data.base.source import BadImage, Source, fingerprint_of
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
        found = self.stored.read(indices)
        if not self._checked[indices].all():
            if broken := self.stored.broken_in(indices, found):
                raise BadImage(self.stored.named(broken[0]), broken[1])
            self._checked[indices] = True
        return self.axes.arranged(found)

    @functools.cached_property
    def _checked(self) -> np.ndarray:
        """True for the samples that were read before and break no rule of the file, (N,)."""
        return np.zeros(self.stored.shape[0], bool)

    def map_of(self, given: str | None, flag: str) -> ValueMap:
        """The map of the numbers: the declared one, or that of floats within [0, 1] or [-1, 1]; see kinds.map_of()."""
        some = self.axes.arranged(self._valid(*self.stored.readable(spread(self.stored.shape[0]))))
        return map_of(given, self.stored, some, flag=flag, channels=self.stored.names_of(self.shape[-1]))

    def missing(self, fill: float) -> Missing:
        """The places that have no number in any of 64 samples spread over the data, and the number in their stead."""
        _, some = self.stored.readable(spread(self.stored.shape[0]))
        if some.dtype.kind != "f" or not len(some):
            return Missing(fill)
        mask = np.isnan(self.axes.arranged(some)).all(axis=0)
        return Missing(fill, mask if mask.any() else None)

    def _valid(self, indices: np.ndarray, found: np.ndarray) -> np.ndarray:
        """Those of some samples whose numbers are all within the limits that the file declares.

        Raises:
            UserError: one has a number that stands for a missing one, or none is left.
        """
        self.stored.refuse_marked(indices, found, marks_only=True)
        if self.stored.broken_in(indices, found) is None:
            return found
        each = [slice(place, place + 1) for place in range(len(indices))]
        valid = [place for place, one in enumerate(each) if self.stored.broken_in(indices[one], found[one]) is None]
        if not valid:
            self.stored.refuse_marked(indices, found)
        return found[valid]


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
            told_by.append(np.ascontiguousarray(part.stored.readable(places)[1]).tobytes())
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
