"""Work on numbered items that several ranks can share."""

from collections.abc import Callable

import numpy as np

Work = Callable[[int, int], np.ndarray]
"""work(first, past): the results of the items first, ..., past - 1, one row for each"""
Share = Callable[[Work, int], np.ndarray]
"""share(work, count): the results of the items 0, ..., count - 1 in their order, on every rank"""


def alone(work: Work, count: int) -> np.ndarray:
    """Do all of the work here."""
    return work(0, count)
