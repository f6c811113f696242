"""The checks of hvdgan.doctor: MPI, Slurm allocation, launcher and ssh.
Modules: cli.programs, diagnostics.folders, diagnostics.installation, diagnostics.placement, diagnostics.table"""

import os

import pytest

from hvdgan.diagnostics import installation, placement
from hvdgan.diagnostics.table import Row

BOTH = {"mpi": True, "gloo": True}


@pytest.fixture
def bare(no_launcher, tmp_path):
    no_launcher.chdir(tmp_path)
    return no_launcher


@pytest.fixture
def put_on_path(bare, tmp_path):
    """Replaces the PATH by a folder with shell scripts of the given names."""

    def put(**scripts):
        (tmp_path / "bin").mkdir()
        for name, text in scripts.items():
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / "bin" / name).chmod(0o755)
        bare.setenv("PATH", f"{tmp_path}/bin")

    return put


@pytest.mark.parametrize(
    ("said", "build", "verdict", "found"),
    [
        ("mpirun (Open MPI) 5.0.11", BOTH, "fail", "horovodrun cannot drive it"),
        ("mpirun (Open MPI) 5.0.11", {**BOTH, "mpi": False}, "ok", "horovodrun cannot drive it"),
        ("mpirun (Open MPI) 4.1.4", BOTH, "ok", "Open MPI 4.1.4; horovodrun can drive it"),
        ("HYDRA build details: MPICH Version: 4.0.2", BOTH, "ok", "MPICH 4.0.2; horovodrun can drive it"),
        (None, BOTH, "warn", "no mpirun on the PATH"),
    ],
)
def test_whether_horovodrun_can_drive_the_mpi(put_on_path, said, build, verdict, found):
    put_on_path(**({"mpirun": f"echo '{said}'"} if said else {}))
    row = installation.mpi(build)
    assert row.verdict == verdict and found in row.found and bool(row.hint) == (verdict != "ok")


LAUNCHED = {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"}


@pytest.mark.parametrize(
    ("tasks", "launched", "verdict", "hint"),
    [("4", {}, "warn", "srun --mpi=pmix"), ("4", LAUNCHED, "fail", "each of the 4 task(s)"), ("2", LAUNCHED, "ok", "")],
)
def test_the_allocation_against_what_was_started(bare, tasks, launched, verdict, hint):
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_NTASKS": tasks, **launched}.items():
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
