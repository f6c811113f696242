"""A source whose numbers are mapped to what networks see; numbers outside a declared range are counted, not changed."""

import threading

import numpy as np

from hvdgan.data.arrays.conditions import Described
from hvdgan.data.base.source import BadImage, Source, SourceWrapper
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import ValueMap


def mapped(source: Source, values: SampleValues) -> Source:
    """The source as networks see it, float32; pictures stay uint8, which the step itself maps.

    Args:
        source: samples as they are stored.
        values: maps of the parts, with all statistics.
    """
    if source.is_pictures:
        conditions = _forward(values.conditions, source.conditions)
        return source if conditions is None else Described(source, values, conditions)
    return Mapped(source, values)


class Mapped(SourceWrapper):
    """Another source's samples in float32, mapped; a sample with a number that is not finite is a bad one."""

    def __init__(self, source: Source, values: SampleValues) -> None:
        super().__init__(
            source,
            dtype=np.float32,
            values=values,
            conditions=_forward(values.conditions, source.conditions),
            constants=_forward(values.constants, source.constants),
        )
        self._lock = threading.Lock()
        self._outside = 0
        self._checked = np.zeros(len(source), bool)
        """samples that were read before, whose numbers need not be looked at again"""

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        inputs, images = self.layout.split(self._source.fetch_batch(indices))
        new = not self._checked[indices].all()
        with np.errstate(all="ignore"):
            seen = self.values.images.forward(images)
            inputs_seen = None if inputs is None or self.values.inputs is None else self.values.inputs.forward(inputs)
        if new:
            self._check(indices, images, seen, self.values.images)
            if inputs_seen is not None and self.values.inputs is not None:
                self._check(indices, inputs, inputs_seen, self.values.inputs)
            self._checked[indices] = True
        return seen if inputs_seen is None else self.layout.joined(inputs_seen, seen, np.dtype(np.float32))

    def take_outside(self) -> int:
        """How many numbers outside the declared ranges were found since the last call; each sample counts once."""
        with self._lock:
            count, self._outside = self._outside, 0
        return count

    def _check(self, indices: np.ndarray, samples: np.ndarray, seen: np.ndarray, value_map: ValueMap) -> None:
        """Count the numbers outside of declared ranges, and find those that are not finite once they are mapped."""
        if not (finite := np.isfinite(seen)).all():
            first = int(np.argmin(finite.reshape(len(seen), -1).all(axis=1)))
            raise BadImage(self._source.named(int(indices[first])), _reason(samples[first], value_map))
        if value_map.has_range:
            unique, places = np.unique(indices, return_index=True)
            outside = value_map.outside(samples[places[~self._checked[unique]]])
            with self._lock:
                self._outside += outside


def not_finite(sample: np.ndarray) -> str:
    """How many numbers of a sample are NaN or infinite, in words; an empty string if none is."""
    finite = np.isfinite(sample)
    if finite.all():
        return ""
    kinds = ["NaN"] * bool(np.isnan(sample).any()) + ["infinite"] * bool(np.isinf(sample).any())
    return f"{np.count_nonzero(~finite):,} of {sample.size:,} numbers are {' or '.join(kinds)}"


def _reason(sample: np.ndarray, value_map: ValueMap) -> str:
    if reason := not_finite(sample):
        return reason
    return f"numbers from {sample.min():g} to {sample.max():g} cannot be mapped by {value_map}"


def _forward(value_map: ValueMap | None, numbers: np.ndarray | None) -> np.ndarray | None:
    return numbers if value_map is None or numbers is None else value_map.forward(numbers)
