"""Mean and deviation of each channel over the training data, the same numbers for any number of ranks."""

import contextlib
import functools
from typing import Any

import numpy as np

from hvdgan.data.bad_files import BadImage
from hvdgan.data.samples import Samples
from hvdgan.data.sharing import share_out_ranges
from hvdgan.errors import UserError
from hvdgan.errors.shared_errors import Peers, from_root
from hvdgan.values.sample_values import SampleValues, of_parts
from hvdgan.values.value_map import ValueMap

BLOCK_BYTES = 32 * 2**20
"""size of the samples of a block"""
Moments = np.ndarray
"""rows (3, C) of counts, means, and sums of squared differences from the mean"""


def with_statistics(source: Samples, peers: Peers, known: SampleValues | None = None) -> SampleValues:
    """The maps of a source with the means and deviations that `standard` needs.

    The data are divided into blocks by their number alone, the ranks share the blocks, and the moments of all blocks
    are combined in their order in float64, so that the result does not depend on the number of ranks.

    A part takes those of `known`, such as a checkpoint's maps, if its map differs in nothing else.

    Reference: Chan, Golub and LeVeque 1983, equation 1.5 (combination of moments).
    """
    values = source.values
    if known is not None:
        pairs = [(name, mine, known.parts().get(name)) for name, mine in values.parts().items()]
        taken = {name: its for name, mine, its in pairs if mine and its and mine.differs_in_statistics(its)}
        values = of_parts(values.parts() | taken)
    return of_parts({name: _resolved(source, name, each, peers) for name, each in values.parts().items()})


def _resolved(source: Samples, part: str, value_map: ValueMap | None, peers: Peers) -> Any:
    """The map of a part with all its statistics, of which a chain may need several, one after another."""
    while value_map is not None and value_map.lacks_statistics:
        if part in ("conditions", "constants"):
            work = functools.partial(_of_memory, source, part, value_map)
            moments = np.array(from_root(work, peers, f"--data {source.name}: {part}"))
        else:
            moments = _of_samples(source, part, value_map, peers)
        value_map = _filled(value_map, moments, source, part)
    return value_map


def _of_memory(source: Samples, part: str, value_map: ValueMap) -> Any:
    with np.errstate(all="ignore"):
        before = value_map.before_statistics(getattr(source, part))
    source.refuse_lost(part, value_map, before)
    return moments_of(before).tolist()


def _of_samples(source: Samples, part: str, value_map: ValueMap, peers: Peers) -> Moments:
    found = share_out_ranges(
        len(source),
        lambda some: _of_block(source, part, value_map, np.array(some)).tolist(),
        peers,
        f"--data {source.name}: statistics",
        length=max(1, BLOCK_BYTES // sum(each.nbytes for each in source.blank(1).values())),
    )
    return functools.reduce(combined, map(np.array, found))


def _of_block(source: Samples, part: str, value_map: ValueMap, indices: np.ndarray) -> Moments:
    """Moments of the finite samples of a block; the others are left out of training, too."""
    try:
        before = _before(source, part, value_map, indices)
    except BadImage:
        each: list[np.ndarray] = []
        for index in indices:
            with contextlib.suppress(BadImage):
                each.append(_before(source, part, value_map, np.array([index])))
        before = np.concatenate(each or [np.zeros((0, len(value_map.channels)))])
    if source.missing is not None:  # each channel may have other numbers
        channels = [moments_of(one[np.isfinite(one)][:, None]) for one in np.moveaxis(before, -1, 0)]
        return np.concatenate(channels, axis=1)
    return moments_of(before[np.isfinite(before).all(axis=tuple(range(1, before.ndim)))])


def _before(source: Samples, part: str, value_map: ValueMap, indices: np.ndarray) -> np.ndarray:
    """Some samples to which the first steps are applied."""
    with np.errstate(all="ignore"):
        return value_map.before_statistics(source.fetch_batch(indices)[part])


def moments_of(numbers: np.ndarray) -> Moments:
    """The moments of numbers (..., C) in float64; the deviation of equal numbers is 0 exactly.

    Differences from the first number are summed: sums of the numbers themselves would round, and a channel of equal
    ones would have a deviation of up to 1e-9 of its mean.
    """
    flat = numbers.reshape(-1, numbers.shape[-1])
    counts = np.full(flat.shape[1], float(len(flat)))
    if not len(flat):
        return np.stack([counts, counts, counts])
    apart = flat - flat[0]
    mean = apart.mean(axis=0)
    apart -= mean
    return np.stack([counts, flat[0] + mean, np.square(apart, out=apart).sum(axis=0)])


def combined(one: Moments, other: Moments) -> Moments:
    """The moments of two sets of numbers together."""
    count = one[0] + other[0]
    divisor = np.maximum(count, 1)
    apart = other[1] - one[1]
    mean = one[1] + apart * (other[0] / divisor)
    return np.stack([count, mean, one[2] + other[2] + np.square(apart) * (one[0] * other[0] / divisor)])


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
