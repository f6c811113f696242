"""Losses over the whole batch on two ranks, whose slices are unequal.

tests/training/test_whole_batch.py has the other kinds of losses, and means of a rank's own samples.
"""

import numpy as np
import pytest

import whole_losses
from hvdgan.distributed.ranks import Ranks


@pytest.mark.parametrize("kind", ["deviation", pytest.param("contrast", marks=pytest.mark.long)])
def test_two_ranks_compute_what_one_computes(ranks, kind):
    found, alone = (whole_losses.weights(kind, each, steps=10) for each in (ranks, Ranks()))
    assert all(np.abs(found[name] - value).max() < 1e-5 for name, value in alone.items())
