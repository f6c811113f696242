"""Ranks: slices of the global batch, tapes and bundles of gradients, errors of collectives; tests/parallel reduces.
Modules: distributed.backend, distributed.reduction, distributed.collective_errors"""

import itertools

import pytest

from hvdgan.cli.errors import UserError
from hvdgan.distributed.ranks import Ranks


@pytest.mark.parametrize(
    ("batch_size", "slice_unit", "counts"), [(12, 0, [4, 4, 4]), (64, 1, [21, 21, 22]), (64, 2, [20, 22, 22])]
)
def test_slices_cover_the_batch_and_weigh_their_samples(batch_size, slice_unit, counts):
    ranks = [Ranks(rank, 3, slice_unit=slice_unit) for rank in range(3)]
    ends = list(itertools.accumulate(counts, initial=0))
    assert [rank.slice_of(batch_size) for rank in ranks] == list(itertools.pairwise(ends))
    assert ends[-1] == batch_size
    assert ranks[0].weights(batch_size) == pytest.approx([3 * count / batch_size for count in counts])


@pytest.mark.parametrize(
    ("batch_size", "slice_unit", "advice"),
    [(10, 0, "take 9 or 12"), (2, 0, "take 3$"), (2, 1, "a multiple of 1 "), (64, 3, "a multiple of 3 ")],
)
def test_a_batch_that_cannot_be_split_is_refused(batch_size, slice_unit, advice):
    with pytest.raises(UserError, match=f"--global-batch-size {batch_size}: .*{advice}"):
        Ranks(0, 3, slice_unit=slice_unit).slice_of(batch_size)
