"""Processes of a launcher become ranks, of an elastic run again after each change, and share the global batch;
tests/parallel and tests/training/test_elastic.py have several of them.
Modules: launching.launched, distributed.ranks, distributed.backend"""

import itertools
import os

import pytest

from hvdgan.distributed import joining
from hvdgan.distributed.joining import set_defaults
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import UserError
from hvdgan.launching.launched import launched

CYCLE, YIELDS = "HOROVOD_CYCLE_TIME", "OMPI_MCA_mpi_yield_when_idle"


def test_another_number_of_ranks_than_expected_is_refused(no_launcher):
    with pytest.raises(UserError, match="--expect-size 4: there are 1 ranks"):
        joining.start(expect_size=4)


def test_defaults_of_horovod_differ_between_cpus_and_gpus_and_what_the_user_has_set_stays(monkeypatch):
    always = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "300", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600"}
    for settings, given, expected in (
        ({"on_gpu": False, "over_mpi": True, "pair": False}, {CYCLE: "7"}, {CYCLE: "7", YIELDS: "1"}),
        ({"on_gpu": True, "over_mpi": False, "pair": True, "elastic": True}, {}, {}),  # lost ranks must be noticed
    ):
        monkeypatch.setattr(os, "environ", {**given})
        set_defaults(**settings)
        assert os.environ == always | expected


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


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("none", 1, 0)),
        ({"HOROVOD_SIZE": "4", "HOROVOD_RANK": "3"}, ("horovodrun", 4, 3)),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, ("mpirun", 2, 1)),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, ("mpiexec", 2, 0)),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, ("srun", 8, 5)),
        # srun --mpi=pmi2, and mpiexec's own proxies, started by srun.
        ({"PMI_SIZE": "4", "PMI_RANK": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}, ("srun", 4, 3)),
        ({"PMI_SIZE": "4", "PMI_RANK": "3", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, ("mpiexec", 4, 3)),
        # horovodrun in an allocation, from the batch script or from the one task of an interactive step.
        ({"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, ("horovodrun", 2, 1)),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, ("srun", 1, 0)),
        # The batch script itself is no task: a single process may be started from it.
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, ("none", 1, 0)),
        ({"HOROVOD_SIZE": "many", "HOROVOD_RANK": "0"}, ("none", 1, 0)),
    ],
)
def test_a_launcher_is_known_by_its_variables(no_launcher, environment, expected):
    for name, value in environment.items():
        no_launcher.setenv(name, value)
    assert launched() == expected
