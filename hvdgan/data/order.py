"""The order of the samples: a function of seed and step, the same for any number of ranks; and --balance."""

import functools
from pathlib import Path

import numpy as np

from hvdgan.data.samples import Samples, fingerprint_of
from hvdgan.errors import UserError

LABELS = "labels"
"""value of --balance for classes"""


def sample_indices(seed: int, position: int, count: int, total: int, ends: np.ndarray | None = None) -> np.ndarray:
    """The samples at consecutive positions of the order, int64 (count,) in [0, total).

    The batches cut one endless sequence of positions. Position p belongs to epoch p // total, and every epoch has its
    own permutation of all samples. A batch may therefore straddle two epochs, all batches have the same size, and no
    sample is left out.

    With weights, whose `ends` are those of ends_of(), an epoch has sample i floor or ceil(total * w_i) times, where the
    weights w sum to 1: its places are cut into parts as long as these, beginning at a random fraction of a place
    (systematic resampling, Kitagawa 1996, appendix). Equal weights give the order without weights.
    """
    positions = np.arange(position, position + count, dtype=np.int64)
    epochs, places = np.divmod(positions, total)
    indices = np.empty_like(positions)
    for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
        inside = epochs == epoch
        indices[inside] = _permutation(seed, epoch, total)[places[inside]]
        if ends is not None:
            begin = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64), counter=[0, 1, 0, 0]).random_raw()
            wanted = indices[inside] + (int(begin) >> 11) * 2.0**-53
            indices[inside] = np.searchsorted(ends, wanted, side="right")
    return indices


def draws_at(seed: int, position: int, count: int) -> np.ndarray:
    """Numbers, uint64 (count,), that decide which parts of longer samples a batch has, which begins at a position."""
    return np.random.Philox(key=np.array([seed, position], dtype=np.uint64), counter=[0, 2, 0, 0]).random_raw(count)


def ends_of(weights: np.ndarray) -> np.ndarray:
    """Where each sample's part of the places of an epoch ends, for weights (N,): float64 (N,), the last one N."""
    ends = np.cumsum(weights) * (len(weights) / np.sum(weights))
    ends[np.flatnonzero(weights)[-1] :] = len(weights)  # rounding may have left it a little below
    return ends


def balanced(source: Samples, balance: str) -> Samples:
    """The samples with weights, which the fingerprint then covers: every class equally often ("labels"), or as the
    .npy file of this path says, with one number for each sample of the data.
    """
    flag = f"--balance {balance}"
    if balance == LABELS:
        if not source.num_classes:
            raise UserError(f"{flag}: {source.name} has no labels; name a .npy file with a weight for each sample")
        labels = source.labels
        assert labels is not None
        weights = 1.0 / np.bincount(labels)[labels]
    else:
        weights = _weights_in(flag, Path(balance), source.images.shape[0])[source.numbers(np.arange(len(source)))]
    fingerprint = fingerprint_of(source.fingerprint.encode(), [weights.tobytes()])
    return source.replace(weights=weights, fingerprint=fingerprint)


def _weights_in(flag: str, path: Path, count: int) -> np.ndarray:
    try:
        weights = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{flag}: {error}; expected labels, or a .npy file with a weight for each sample") from error
    fits = isinstance(weights, np.ndarray) and weights.shape == (count,) and weights.dtype.kind in "fiu"
    if not (fits and np.isfinite(weights).all() and weights.min() >= 0 and weights.any()):
        what = f"{weights.dtype} {weights.shape}" if isinstance(weights, np.ndarray) else "several arrays"
        raise UserError(f"{flag}: {what}; expected ({count},) finite numbers from 0 up, not all 0")
    return weights.astype(np.float64)


# Two for each of two domains: a batch that straddles epochs needs both, and the next batches the later one again.
@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, total: int) -> np.ndarray:
    """The order of one epoch, int64 (total,).

    NumPy guarantees the raw bits of a bit generator, but not the results of `Generator.permutation` (NEP 19). The bits
    are therefore sorted here, and a run resumed under another NumPy has the same order.
    """
    bits = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(total)
    order = np.argsort(bits, kind="stable")
    order.flags.writeable = False
    return order
