"""Which ranks of a run have waited for their data, from the records that name the one that waited longest."""

import numpy as np

MOST_RANKS = 100_000


class Waits:
    """How often each rank has waited longest, and for how long.

    The first record does not count: its steps wait until queues are full.
    """

    NAMES = frozenset({"wait_rank", "wait_seconds_max"})
    """names of the two metrics"""

    def __init__(self) -> None:
        self._counts: np.ndarray = np.zeros(0, np.int64)
        self._seconds: np.ndarray = np.zeros(0)
        self._is_first = True

    def add(self, ranks: np.ndarray, seconds: np.ndarray) -> None:
        """Add records; values that cannot be a rank or a time are left out."""
        ranks, seconds = (ranks[1:], seconds[1:]) if self._is_first else (ranks, seconds)
        self._is_first = False
        # NaN fails each comparison.
        good = (ranks >= 0) & (ranks < MOST_RANKS) & (ranks == np.floor(ranks)) & (seconds >= 0) & np.isfinite(seconds)
        if good.any():
            known = ranks[good].astype(np.int64)
            size = max(len(self._counts), int(known.max()) + 1)
            self._counts = np.bincount(known, minlength=size) + np.pad(self._counts, (0, size - len(self._counts)))
            sums = np.bincount(known, seconds[good], minlength=size)
            self._seconds = sums + np.pad(self._seconds, (0, size - len(self._seconds)))

    def longest(self, most: int) -> list[tuple[int, int, float]]:
        """Return rank, number of records, and their mean seconds of a step, of the ranks that waited most in all."""
        order = np.argsort(-self._seconds, kind="stable")[:most]
        return [
            (int(rank), int(self._counts[rank]), float(self._seconds[rank] / self._counts[rank]))
            for rank in order
            if self._counts[rank]
        ]
