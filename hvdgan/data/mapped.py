"""A source whose numbers are mapped to what networks see; numbers outside a declared range are counted, not changed.

The step maps numbers of a type narrower than float32, so that fewer bytes are read ahead, copied to the GPU and mapped
by the CPU. It does so where TensorFlow computes the same bits as NumPy; all other numbers are mapped here.
"""

import threading

import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.data.conditions import Described
from hvdgan.data.source import BadImage, Source, SourceWrapper
from hvdgan.values.missing import Missing
from hvdgan.values.sample_values import SampleValues, may_be_pictures
from hvdgan.values.steps import FailedFunction
from hvdgan.values.value_map import NARROW, ValueMap


def mapped(source: Source, values: SampleValues) -> Source:
    """The source as networks see it, or in a narrower type, which unpack() maps in the step.

    Pictures are uint8, arrays of 8 or 16 bits keep their type if their maps allow it, and all others are float32.

    Args:
        source: samples as they are stored.
        values: maps of the parts, with all statistics.

    Raises:
        UserError: a condition or a constant cannot be mapped to a finite number.
    """
    seen: SourceWrapper
    if not source.is_pictures:
        seen = Mapped(source, values)
    elif (conditions := _seen(source, values, "conditions")) is None:
        return source
    else:
        seen = Described(source, values, conditions)
    seen.remarks = [*source.remarks, *_rounding(values), *_outside_beside(source, values)]
    return seen


class Mapped(SourceWrapper):
    """Another source's samples, mapped to float32, or as they are stored if the step is to map them.

    In both cases a sample with a number that is not finite, once it is mapped, is a bad one.
    """

    def __init__(self, source: Source, values: SampleValues) -> None:
        super().__init__(
            source,
            dtype=source.dtype if _can_be_mapped_later(source, values) else np.float32,
            values=values,
            conditions=_seen(source, values, "conditions"),
            constants=_with_mask(_seen(source, values, "constants"), source.missing),
        )
        self._lock = threading.Lock()
        self._outside = 0
        self._checked = np.zeros(len(source), bool)
        """samples that were read before, whose numbers need not be looked at again"""

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        records = self._source.fetch_batch(indices)
        is_stored, new = self.dtype != np.float32, not self._checked[indices].all()
        if is_stored and not new:
            return records
        inputs, images = self.layout.split(records)
        seen = self._seen_of(indices, images, self.values.images)
        inputs_seen = None
        if inputs is not None and self.values.inputs is not None:
            inputs_seen = self._seen_of(indices, inputs, self.values.inputs)
        if new:
            self._check(indices, images, seen, self.values.images)
            if inputs_seen is not None and self.values.inputs is not None:
                self._check(indices, inputs, inputs_seen, self.values.inputs)
            self._checked[indices] = True
        if is_stored:
            return records
        return seen if inputs_seen is None else self.layout.joined(inputs_seen, seen, np.dtype(np.float32))

    def _seen_of(self, indices: np.ndarray, samples: np.ndarray, value_map: ValueMap) -> np.ndarray:
        """Samples once they are mapped; one for which a function of the user's raises an error is a bad one."""
        with np.errstate(all="ignore"):
            try:
                seen = value_map.forward(samples)
            except FailedFunction as error:
                for index, sample in zip(indices, samples, strict=True):
                    try:
                        value_map.forward(sample[None])
                    except FailedFunction as its:
                        raise BadImage(self._source.named(int(index)), str(its)) from its
                raise error  # it takes each sample alone
        return seen if self.missing is None else self.missing.filled(samples, seen)

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


def _can_be_mapped_later(source: Source, values: SampleValues) -> bool:
    """Whether the step can map these numbers to the same bits, and takes them for no pictures, which it scales."""
    maps = [each for each in (values.images, values.inputs) if each is not None]
    if source.missing is not None:
        return False
    narrow = source.dtype in NARROW and not (source.dtype == np.uint8 and may_be_pictures(source.layout.shape))
    return narrow and all(each.is_one_step_of_arithmetic for each in maps)


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


def _rounding(values: SampleValues) -> list[str]:
    """A line on each part whose numbers float32 rounds."""
    return [each.rounding for each in values.parts().values() if each is not None and each.rounding]


def _outside_beside(source: Source, values: SampleValues) -> list[str]:
    """A line on each part in memory that has numbers outside of its declared range."""
    parts = (("conditions", values.conditions, source.conditions), ("constants", values.constants, source.constants))
    known = [(name, each, numbers) for name, each, numbers in parts if each is not None and numbers is not None]
    return [f"{name}: {words}" for name, each, numbers in known if (words := each.outside_in_words(numbers))]


def _seen(source: Source, values: SampleValues, part: str) -> np.ndarray | None:
    """A part in memory as networks see it."""
    value_map = values.parts()[part]
    numbers: np.ndarray | None = getattr(source, part)
    if value_map is None or numbers is None:
        return numbers
    with np.errstate(all="ignore"):
        seen = value_map.forward(numbers)
    refuse_lost(source, part, value_map, seen)
    return seen


def _with_mask(constants: np.ndarray | None, missing: Missing | None) -> np.ndarray | None:
    """The constants with the field of missing numbers as the last one, if there is one."""
    field = None if missing is None else missing.field
    return constants if field is None else field if constants is None else np.concatenate([constants, field], axis=-1)


def refuse_lost(source: Source, part: str, value_map: ValueMap, seen: np.ndarray) -> None:
    """Refuse conditions and constants of which a map makes NaN or infinities: no sample could be left out for them.

    Args:
        source: the data, as they are stored.
        part: name of the part: conditions or constants.
        value_map: its map.
        seen: numbers of the part once they are mapped, or once the first steps are applied.

    Raises:
        UserError: names the first such number.
    """

    def where(place: tuple[int, ...]) -> str:
        if part == "constants":
            return f" at {place}"
        number = source.numbers(np.array(place))[0]
        return f" of sample {number} ({source.named(place[0])})"

    if words := value_map.lost_in_words(getattr(source, part), seen, where):
        raise UserError(
            f"--data {source.name}: {words}; correct the number, or declare another map with --{part[:-1]}-values"
        )
