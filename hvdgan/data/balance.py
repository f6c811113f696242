"""How often each sample is trained on: --balance."""

from pathlib import Path

import numpy as np

from hvdgan.data.samples import Samples, fingerprint_of
from hvdgan.errors import UserError

LABELS = "labels"


def balanced(source: Samples, balance: str) -> Samples:
    """The samples with weights: every class equally often, or as a file says.

    The fingerprint covers the weights, so that a run does not resume with others.

    Args:
        source: samples to train on.
        balance: "labels", or the path of a .npy file of one number for each sample of the data, in their order.

    Raises:
        UserError: there are no classes; or the file cannot be read, or does not fit the data.
    """
    flag = f"--balance {balance}"
    if balance == LABELS:
        if not source.num_classes:
            raise UserError(f"{flag}: {source.name} has no labels; name a .npy file with a weight for each sample")
        labels = source.labels
        assert labels is not None
        weights = 1.0 / np.bincount(labels)[labels]
    else:
        weights = _read(flag, Path(balance), source.images.shape[0])[source.numbers(np.arange(len(source)))]
    fingerprint = fingerprint_of(source.fingerprint.encode(), [weights.tobytes()])
    return source.replace(weights=weights, fingerprint=fingerprint)


def _read(flag: str, path: Path, count: int) -> np.ndarray:
    try:
        weights = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{flag}: {error}; expected labels, or a .npy file with a weight for each sample") from error
    fits = isinstance(weights, np.ndarray) and weights.shape == (count,) and weights.dtype.kind in "fiu"
    if not (fits and np.isfinite(weights).all() and weights.min() >= 0 and weights.any()):
        what = f"{weights.dtype} {weights.shape}" if isinstance(weights, np.ndarray) else "several arrays"
        raise UserError(f"{flag}: {what}; expected ({count},) finite numbers from 0 up, not all 0")
    return weights.astype(np.float64)
