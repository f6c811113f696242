"""Losses over the whole batch: on several ranks they train what one rank trains, and what cannot be is refused."""

import sys

import numpy as np
import pytest

import whole_losses
from hvdgan.distributed.ranks import Ranks
from launching import CONTROLLERS, ROOT, launcher, run

QUICK = "relativistic", "deviation", "contrast"
CASES = [pytest.param(2, QUICK, id="2"), pytest.param(3, whole_losses.KINDS, id="3", marks=pytest.mark.long)]
CASES.append(pytest.param(2, whole_losses.KINDS, id="2, all", marks=pytest.mark.long))


@pytest.mark.parametrize(("size", "kinds"), CASES)
def test_ranks_train_what_one_rank_trains_and_would_not_with_means_of_their_own(tmp_path, size, kinds):
    """50 steps of SGD on slices of unequal sizes; the largest difference of all weights."""
    script = [sys.executable, ROOT / "tests" / "support" / "whole_losses.py", tmp_path, *kinds]
    done = run([*launcher(size, CONTROLLERS[-1]), *script], cwd=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    for kind in kinds:
        alone = whole_losses.weights(kind, Ranks())
        apart = {}
        for whole in (True, False):
            found = np.load(tmp_path / f"{kind}-{whole}.npz")
            apart[whole] = max(np.abs(found[name] - value).max() for name, value in alone.items())
        print(kind, size, apart)
        assert apart[True] < 1e-5 and apart[False] > 1e-3, (kind, apart)
