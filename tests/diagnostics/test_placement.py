"""Checks of launcher, Slurm allocation and ssh."""

import os

import pytest

from hvdgan.diagnostics import placement
from hvdgan.diagnostics.table import Row


@pytest.mark.parametrize(
    ("environment", "verdict", "hint"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, "warn", "srun --mpi=pmix"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}, "ok", ""),
        (
            {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"},
            "fail",
            "one for each of the 4 task(s)",
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"}, "ok", ""),
    ],
)
def test_the_allocation_against_what_was_started(bare, environment, verdict, hint):
    for name, value in environment.items():
        bare.setenv(name, value)
    row = placement.slurm()
    assert row is not None and row.verdict == verdict and hint in row.hint


def test_srun_without_pmi_is_refused_before_every_task_is_rank_0_of_1(bare):
    bare.setenv("SLURM_STEP_NUM_TASKS", "2")
    bare.setenv("SLURM_PROCID", "0")
    assert placement.launcher().verdict == "fail" and "--mpi=pmix" in placement.launcher().hint
    bare.setenv("PMIX_RANK", "0")
    assert placement.launcher().verdict == "ok"


def test_hosts_are_reached_as_horovodrun_does_or_named(put_on_path):
    script = 'while [ "$1" != -- ]; do shift; done; [ "$2" = good ] || { echo "$2: no route" >&2; exit 255; }'
    put_on_path(ssh=script)
    assert placement.ssh([os.uname().nodename, "good"], needed=True) == Row("ssh", "1 other host(s) reached")
    bad = placement.ssh(["good", "bad"], needed=True)
    assert bad.verdict == "fail" and bad.found == "bad: bad: no route" and "ssh-copy-id" in bad.hint
    assert placement.ssh(["bad"], needed=False).verdict == "warn"
