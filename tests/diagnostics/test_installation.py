"""The check of the MPI that horovodrun would use.

Modules: cli.programs.
"""

import pytest

from hvdgan.diagnostics import installation

BOTH = {"mpi": True, "gloo": True}
GLOO = {"mpi": False, "gloo": True}


@pytest.mark.parametrize(
    ("said", "build", "verdict", "found"),
    [
        ("mpirun (Open MPI) 5.0.11", BOTH, "fail", "horovodrun cannot drive it"),
        ("mpirun (Open MPI) 4.1.4", BOTH, "ok", "Open MPI 4.1.4; horovodrun can drive it"),
        ("HYDRA build details: MPICH Version: 4.0.2", BOTH, "ok", "MPICH 4.0.2; horovodrun can drive it"),
        ("some other MPI 1.0", BOTH, "fail", "unknown: some other MPI 1.0"),
        (None, BOTH, "warn", "no mpirun on the PATH"),
    ],
)
def test_whether_horovodrun_can_drive_the_mpi(put_on_path, said, build, verdict, found):
    put_on_path(**({"mpirun": f"echo '{said}'"} if said else {}))
    row = installation.mpi(build)
    assert row.verdict == verdict and found in row.found and bool(row.hint) == (verdict != "ok")
