"""One rank, and what is decided before there are several; tests/parallel has the rest."""

import itertools
import os

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.launcher import launched
from hvdgan.distributed import ranks as distributed
from hvdgan.distributed.collective_errors import collective_failure
from hvdgan.distributed.ranks import Ranks, cores_of_rank


@pytest.fixture
def bare(monkeypatch):
    """An environment that no launcher has touched."""
    for name in list(os.environ):
        if name.startswith(("HOROVOD_", "OMPI_COMM", "PMI", "SLURM_")):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("none", 1, 0)),
        ({"HOROVOD_SIZE": "4", "HOROVOD_RANK": "3"}, ("horovodrun", 4, 3)),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, ("mpirun", 2, 1)),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, ("mpiexec", 2, 0)),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, ("srun", 8, 5)),
        # srun --mpi=pmi2, and mpiexec's own proxies, started by srun.
        (
            {"PMI_SIZE": "4", "PMI_RANK": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"},
            ("srun", 4, 3),
        ),
        (
            {"PMI_SIZE": "4", "PMI_RANK": "3", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"},
            ("mpiexec", 4, 3),
        ),
        # horovodrun and mpirun in an allocation, from the batch script or from the one task of an interactive step.
        (
            {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},
            ("horovodrun", 2, 1),
        ),
        (
            {
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_RANK": "5",
                "SLURM_STEP_NUM_TASKS": "1",
                "SLURM_PROCID": "0",
            },
            ("mpirun", 8, 5),
        ),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, ("srun", 1, 0)),
        # The batch script itself is no task: a single process may be started from it.
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, ("none", 1, 0)),
        ({"HOROVOD_SIZE": "many", "HOROVOD_RANK": "0"}, ("none", 1, 0)),
    ],
)
def test_the_launcher_is_known_by_what_it_tells_its_processes(bare, environment, expected):
    for name, value in environment.items():
        bare.setenv(name, value)
    assert launched() == expected


def test_an_error_of_a_collective_keeps_its_reason():
    failure = collective_failure(tf.errors.UnknownError(None, None, "Horovod has been shut down.\nmore"), lambda: None)
    assert "talking to the other ranks failed: Horovod has been shut down.; if one" in str(failure)
    assert collective_failure(tf.errors.UnknownError(None, None, "no such kernel"), lambda: None) is None


def test_ranks_that_are_not_bound_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert [cores_of_rank(Ranks(0, size, 0, size)) for size in (1, 2, 3, 16)] == [8, 4, 2, 1]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    assert cores_of_rank(Ranks(0, 2, 0, 2, "mpirun")) == 4  # mpirun has bound this rank
    assert cores_of_rank(Ranks(0, 2, 0, 2, "horovodrun")) == 2  # an allocation, which the ranks share


def test_the_batch_is_split_evenly_or_refused():
    assert [Ranks(rank, 4).slice_of(12) for rank in range(4)] == [(0, 3), (3, 6), (6, 9), (9, 12)]
    with pytest.raises(UserError, match="--global-batch-size 10: cannot be split evenly over 4 ranks; take 8 or 12"):
        Ranks(0, 4).slice_of(10)
    with pytest.raises(UserError, match="over 4 ranks; take 4$"):
        Ranks(0, 4).slice_of(2)


@pytest.mark.parametrize(("batch_size", "uneven_by", "counts"), [(64, 1, [21, 21, 22]), (64, 2, [20, 22, 22])])
def test_uneven_slices_cover_the_batch_and_weigh_what_they_hold(batch_size, uneven_by, counts):
    bounds = [Ranks(rank, 3, uneven_by=uneven_by).slice_of(batch_size) for rank in range(3)]
    assert [last - first for first, last in bounds] == counts and bounds[0][0] == 0 and bounds[-1][1] == batch_size
    assert all(last == first for (_, last), (first, _) in itertools.pairwise(bounds))
    weights = Ranks(0, 3, uneven_by=uneven_by).weights(batch_size)
    assert weights == pytest.approx([3 * count / batch_size for count in counts]) and sum(weights) == pytest.approx(3)


@pytest.mark.parametrize(("batch_size", "uneven_by"), [(2, 1), (64, 3), (64, 32)])
def test_a_batch_that_leaves_a_rank_without_samples_is_refused(batch_size, uneven_by):
    with pytest.raises(UserError, match=f"--global-batch-size {batch_size}: .* take a multiple of {uneven_by} "):
        Ranks(0, 3, uneven_by=uneven_by).slice_of(batch_size)


def test_one_rank_needs_no_horovod_and_changes_nothing(bare):
    bare.setattr(distributed, "_horovod", lambda: pytest.fail("Horovod was asked for"))
    ranks = distributed.start()
    assert (ranks.rank, ranks.size, ranks.launcher, ranks.is_root) == (0, 1, "none", True)
    values = np.array([1.0, 2.0], np.float32)
    np.testing.assert_array_equal(ranks.stack(values), [values])
    np.testing.assert_array_equal(ranks.broadcast_array(values), values)
    assert ranks.gather({"a": 1}, "b") == [{"a": 1}]
    assert ranks.from_root(lambda: 3, "c") == 3
    ranks.agree({"a": 1}, "d")
    ranks.broadcast([])
    ranks.shutdown()


def test_an_error_of_rank_0_keeps_its_kind():
    def fail():
        raise UserError("no such folder")

    with pytest.raises(UserError, match="no such folder"):
        Ranks().from_root(fail, "a")

    def broken():
        raise RunError("disk full")

    with pytest.raises(RunError, match="disk full") as caught:
        Ranks().from_root(broken, "a")
    assert caught.value.exit_code == 1


def test_another_number_of_ranks_than_expected_is_refused(bare):
    with pytest.raises(UserError, match="--expect-size 4: there are 1 ranks"):
        distributed.start(expect_size=4)
