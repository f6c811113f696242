"""The slices of the global batch and their weights."""

import itertools

import pytest

from hvdgan.cli.errors import UserError
from hvdgan.distributed import ranks as slices
from hvdgan.distributed.ranks import Ranks


def test_the_batch_is_split_evenly_or_refused():
    assert [Ranks(rank, 4).slice_of(12) for rank in range(4)] == [(0, 3), (3, 6), (6, 9), (9, 12)]
    assert Ranks(1, 4).weights(12) == [1.0] * 4
    with pytest.raises(UserError, match="--global-batch-size 10: cannot be split evenly over 4 ranks; take 8 or 12"):
        slices.bounds(10, 4)
    with pytest.raises(UserError, match="over 4 ranks; take 4$"):
        slices.bounds(2, 4)


@pytest.mark.parametrize(("batch_size", "slice_unit", "counts"), [(64, 1, [21, 21, 22]), (64, 2, [20, 22, 22])])
def test_uneven_slices_cover_the_batch_and_weigh_their_samples(batch_size, slice_unit, counts):
    borders = slices.bounds(batch_size, 3, slice_unit)
    assert [last - first for first, last in itertools.pairwise(borders)] == counts
    assert borders[0] == 0 and borders[-1] == batch_size
    of_ranks = [Ranks(rank, 3, slice_unit=slice_unit).slice_of(batch_size) for rank in range(3)]
    assert of_ranks == list(itertools.pairwise(borders))
    weights = slices.weights(borders)
    assert weights == pytest.approx([3 * count / batch_size for count in counts]) and sum(weights) == pytest.approx(3)
    assert Ranks(0, 3, slice_unit=slice_unit).weights(batch_size) == weights


@pytest.mark.parametrize(("batch_size", "slice_unit"), [(2, 1), (64, 3), (64, 32)])
def test_a_batch_that_leaves_a_rank_without_samples_is_refused(batch_size, slice_unit):
    with pytest.raises(UserError, match=f"--global-batch-size {batch_size}: .* take a multiple of {slice_unit} "):
        Ranks(0, 3, slice_unit=slice_unit).slice_of(batch_size)
