"""The launcher that started a process is known by the environment variables that it sets."""

import pytest

from hvdgan.cli.launcher import launched


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
