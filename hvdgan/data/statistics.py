"""Mean and deviation of each channel over the training data, the same numbers for any number of ranks."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import Peers, from_root
from hvdgan.data.bad_files import BadImage
from hvdgan.data.samples import Samples
from hvdgan.data.sharing import share_out
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.steps import FailedFunction
from hvdgan.values.value_map import ValueMap

BLOCK_BYTES = 32 * 2**20
"""size of the samples of a block"""
Moments = tuple[Any, np.ndarray, np.ndarray]
"""count, a number or one for each channel (C,); mean (C,); sum of squared differences from the mean (C,)"""


def with_statistics(source: Samples, peers: Peers, known: SampleValues | None = None) -> SampleValues:
    """The maps of a source with the means and deviations that `standard` needs.

    The data are divided into blocks by their number alone, the ranks share the blocks, and the moments of all blocks
    are combined in their order in float64, so that the result does not depend on the number of ranks.

    Args:
        source: samples to train on, as they are stored.
        peers: the ranks; each calls this.
        known: maps of the same data with their statistics, such as a checkpoint's; a part whose map differs in nothing
            else takes its own.

    Raises:
        UserError: a channel is constant, no sample can be read, or a condition or constant cannot be mapped.
        RunError: the data cannot be read on some rank.

    Reference: Chan, Golub and LeVeque 1983, equation 1.5 (combination of moments).
    """
    values = source.values
    if known is not None:
        pairs = [(name, mine, known.parts()[name]) for name, mine in values.parts().items()]
        taken = {name: its for name, mine, its in pairs if mine and its and mine.differs_in_statistics(its)}
        values = dataclasses.replace(values, **taken)
    while any(each is not None and each.lacks_statistics for each in values.parts().values()):
        values = _resolved_once(source, values, peers)
    return values


def _resolved_once(source: Samples, values: SampleValues, peers: Peers) -> SampleValues:
    """Fill in the first missing statistics of each part."""
    new: dict[str, ValueMap] = {}
    for name, value_map in values.parts().items():
        if value_map is None or not value_map.lacks_statistics:
            continue
        if name in ("conditions", "constants"):
            work = functools.partial(_of_memory, source, name, value_map)
            moments = _of_json(from_root(work, peers, f"--data {source.name}: {name}"))
        else:
            moments = _of_samples(source, name, value_map, peers)
        new[name] = _filled(value_map, moments, source, name)
    return dataclasses.replace(values, **new)


def _of_memory(source: Samples, part: str, value_map: ValueMap) -> list[Any]:
    with np.errstate(all="ignore"):
        before = value_map.before_statistics(getattr(source, part))
    source.refuse_lost(part, value_map, before)
    return _to_json(moments_of(before))


def _of_samples(source: Samples, part: str, value_map: ValueMap, peers: Peers) -> Moments:
    each = max(1, BLOCK_BYTES // (math.prod(source.record_shape) * source.dtype.itemsize))
    blocks = [f"{first} {min(first + each, len(source))}" for first in range(0, len(source), each)]

    def look(some: Sequence[str]) -> list[Any]:
        return [_to_json(_of_block(source, part, value_map, *map(int, block.split()))) for block in some]

    moments = [_of_json(found) for found in share_out(blocks, look, peers, f"--data {source.name}: statistics")]
    return functools.reduce(combined, moments)


def _of_block(source: Samples, part: str, value_map: ValueMap, first: int, past: int) -> Moments:
    """Moments of the finite samples of a block; the others are left out of training, too."""
    indices = np.arange(first, past)
    try:
        records = source.fetch_batch(indices)
    except BadImage:
        records = np.stack([*_readable(source, indices)] or [source.blank(1)[0] * np.nan])
    inputs, images = source.layout.split(records)
    samples = inputs if part == "inputs" else images
    assert samples is not None
    with np.errstate(all="ignore"):
        try:
            before = value_map.before_statistics(samples)
        except FailedFunction:
            before = np.concatenate([_before_or_nan(value_map, sample[None]) for sample in samples])
    if source.missing is not None:
        return _of_each_channel(before)
    finite = np.isfinite(before).reshape(len(before), -1).all(axis=1)
    return moments_of(before[finite])


def _of_each_channel(numbers: np.ndarray) -> Moments:
    """Moments of the finite numbers (..., C), of which each channel may have others."""
    each = [numbers[..., place] for place in range(numbers.shape[-1])]
    counts, means, squares = zip(*(moments_of(one[np.isfinite(one)][:, None]) for one in each), strict=True)
    return np.array(counts, np.float64), np.concatenate(means), np.concatenate(squares)


def _before_or_nan(value_map: ValueMap, sample: np.ndarray) -> np.ndarray:
    """A sample to which the first steps are applied; NaN if a function of the user's raises an error for it."""
    try:
        return value_map.before_statistics(sample)
    except FailedFunction:
        return np.full(sample.shape, np.nan)


def _readable(source: Samples, indices: np.ndarray) -> Any:
    for index in indices:
        try:
            yield source.fetch(int(index))
        except BadImage:
            continue


def moments_of(numbers: np.ndarray) -> Moments:
    """The moments of numbers (..., C) in float64; the deviation of equal numbers is 0 exactly.

    Differences from the first number are summed: sums of the numbers themselves would round, and a channel of equal
    ones would have a deviation of up to 1e-9 of its mean.
    """
    flat = numbers.reshape(-1, numbers.shape[-1])
    if not len(flat):
        return 0, np.zeros(numbers.shape[-1]), np.zeros(numbers.shape[-1])
    apart = flat - flat[0]
    mean = apart.mean(axis=0)
    apart -= mean
    return len(flat), flat[0] + mean, np.square(apart, out=apart).sum(axis=0)


def combined(one: Moments, other: Moments) -> Moments:
    """The moments of two sets of numbers together."""
    count = one[0] + other[0]
    divisor = np.maximum(count, 1) if isinstance(count, np.ndarray) else max(count, 1)
    apart = other[1] - one[1]
    mean = one[1] + apart * (other[0] / divisor)
    return count, mean, one[2] + other[2] + np.square(apart) * (one[0] * other[0] / divisor)


def _filled(value_map: ValueMap, moments: Moments, source: Samples, part: str) -> ValueMap:
    count, mean, squares = moments
    if not np.all(count):
        raise UserError(
            f"--data {source.name}: none of its {len(source)} samples has finite {part} only; --missing fill:0 fills "
            "numbers that are missing (NaN), such as those on land"
        )
    try:
        return value_map.with_statistics(mean.tolist(), np.sqrt(squares / count).tolist())
    except UserError as error:
        raise UserError(f"--data {source.name}: {part}: {error}") from error


def _to_json(moments: Moments) -> list[Any]:
    count = moments[0].tolist() if isinstance(moments[0], np.ndarray) else moments[0]
    return [count, moments[1].tolist(), moments[2].tolist()]


def _of_json(values: Sequence[Any]) -> Moments:
    count = np.array(values[0]) if isinstance(values[0], list) else int(values[0])
    return count, np.array(values[1]), np.array(values[2])
