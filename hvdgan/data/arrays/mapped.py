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

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        inputs, images = self.layout.split(self._source.fetch_batch(indices))
        read = self._checked(indices, images, self.values.images)
        if inputs is None or self.values.inputs is None:
            return read
        return self.layout.joined(self._checked(indices, inputs, self.values.inputs), read, np.dtype(np.float32))

    def take_outside(self) -> int:
        """How many numbers outside the declared ranges were read since the last call."""
        with self._lock:
            count, self._outside = self._outside, 0
        return count

    def _checked(self, indices: np.ndarray, samples: np.ndarray, value_map: ValueMap) -> np.ndarray:
        if outside := value_map.outside(samples):
            with self._lock:
                self._outside += outside
        with np.errstate(all="ignore"):
            networks = value_map.forward(samples)
        if not np.isfinite(networks).all():
            first = int(np.argmin(np.isfinite(networks).reshape(len(networks), -1).all(axis=1)))
            raise BadImage(self._source.named(int(indices[first])), _reason(samples[first], value_map))
        return networks


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
