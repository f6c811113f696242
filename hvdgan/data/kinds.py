"""What is refused or taken as the numbers of an array, and the map that they get where none is declared."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.data.store import Store
from hvdgan.values import value_map
from hvdgan.values.value_map import ValueMap

_SAMPLE = 64
_SLACK = 1e-3  # of the range, which earlier processing may leave
_LEAST_SPAN = 0.05
"""least difference of numbers whose range is taken for [0, 1] or [-1, 1]; smaller ones would nearly vanish"""
_LEAST_SPAN_OF_ENTRY = 1e-4
"""the same for one number of vectors: a border pixel of a flattened picture may hardly differ"""
_EXACT = 2**24
"""largest integer up to which float32 holds all"""


def check_numbers(stored: Store) -> None:
    """Refuse what is no array of real numbers."""
    if stored.dtype.kind not in "fiu" or stored.dtype.itemsize > 8:
        raise UserError(
            f"--data {stored.name}: numbers of type {stored.dtype}; expected float16, float32, float64 or integers; "
            "convert them, such as with array.astype(np.float32), and split complex numbers into two channels"
        )


def spread(count: int) -> np.ndarray:
    """Numbers of at most 64 samples, spread evenly over all."""
    return np.unique(np.linspace(0, count - 1, _SAMPLE).astype(np.int64))


def map_of(given: str | None, stored: Store, sample: np.ndarray, *, flag: str, channels: Sequence[str]) -> ValueMap:
    """The map of an array's numbers: the declared one, or that of floats within [0, 1] or [-1, 1]."""
    units = stored.units_of(len(channels))
    if given is not None:
        made = value_map.parse(given, flag, channels, units)
        return dataclasses.replace(made, remark=_rounding(made, stored, sample, flag))
    example = f"such as {flag} standard, {flag} range:LOW,HIGH or {flag} none"
    if stored.dtype.kind != "f":
        raise UserError(
            f"--data {stored.name}: integers of type {stored.dtype} without a map to the numbers that networks see; "
            f"declare one, {example}"
        )
    finite = sample[np.isfinite(sample)]
    if not finite.size:
        raise UserError(f"--data {stored.name}: none of {len(sample)} samples looked at has a finite number")
    low, high = float(finite.min()), float(finite.max())
    if low >= -1 - _SLACK and high <= 1 + _SLACK and (close := _too_close(sample, channels)):
        raise UserError(
            f"--data {stored.name}: {close} in {len(sample)} samples looked at, which networks would hardly tell apart "
            f"without a map; declare one, {example}"
        )
    for bottom, found in ((0.0, "range:0,1"), (-1.0, "none")):
        if low >= bottom - _SLACK and high <= 1 + _SLACK:
            return value_map.parse(found, flag, channels, units)
    raise UserError(
        f"--data {stored.name}: numbers from {low:g} to {high:g} in {len(sample)} samples looked at, outside of [0, 1] "
        f"and [-1, 1]; declare their map, {example}"
    )


def _too_close(sample: np.ndarray, channels: Sequence[str]) -> str:
    """The numbers of all channels, or of the first one, that nearly vanish in [0, 1], in words; "" if there are none.

    A channel of equal numbers, such as an empty one, counts for none: a map would not tell them apart either.
    """
    finite, others = np.isfinite(sample), tuple(range(sample.ndim - 1))
    lows = np.where(finite, sample, np.inf).min(axis=others).astype(np.float64)
    highs = np.where(finite, sample, -np.inf).max(axis=others).astype(np.float64)
    low, high = float(lows.min()), float(highs.max())
    if 0 < high - low < _LEAST_SPAN:
        return f"numbers from {low:g} to {high:g}"
    least = _LEAST_SPAN if others[1:] else _LEAST_SPAN_OF_ENTRY
    close = np.flatnonzero((highs > lows) & (highs - lows < least))
    if not close.size:
        return ""
    return f"channel {channels[close[0]]}: numbers from {lows[close[0]]:g} to {highs[close[0]]:g}"


def _rounding(made: ValueMap, stored: Store, sample: np.ndarray, flag: str) -> str:
    """A line on integers that float32 rounds because their map is `none`; an empty string if there are none."""
    if stored.dtype.kind == "f" or stored.dtype.itemsize < 4:
        return ""
    # One chain is that of all channels, of which a vector can have many thousands.
    parts = [sample] if len(made.chains) == 1 else [sample[..., place] for place in range(len(made.chains))]
    kept = [part for part, chain in zip(parts, made.chains, strict=True) if not chain]
    largest = max((max(int(some.max()), -int(some.min())) for some in kept), default=0)
    if largest <= _EXACT:
        return ""
    return (
        f"{flag}: {stored.name} has integers up to {largest:,} in {len(sample)} samples looked at, and networks see "
        f"float32, which rounds those above {_EXACT:,}"
    )


def check_labels(name: str, labels: np.ndarray, count: int) -> np.ndarray:
    """Classes as int32 (N,)."""
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise UserError(
            f"--data {name}: labels of shape {labels.shape} and type {labels.dtype}; "
            f"expected one integer for each of {count} images"
        )
    limits = np.iinfo(np.int32)
    if labels.min() < limits.min or labels.max() > limits.max:
        raise UserError(f"--data {name}: labels from {labels.min()} to {labels.max()}; expected values of int32")
    return labels.astype(np.int32)
