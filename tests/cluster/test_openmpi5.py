"""launch/mpirun.sh starts runs with Open MPI 5, which horovodrun cannot do."""

import pytest

import openmpi5
from cluster import PYTHONPATH
from jobs import SETTINGS, assert_same_bits
from launching import ROOT, run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def environment():
    openmpi5.made()
    return {**openmpi5.environment(), "PYTHONPATH": PYTHONPATH}


def test_mpirun_sh_trains_what_open_mpi_4_trains(one_host, tmp_path, environment):
    words = [ROOT / "launch" / "mpirun.sh", "-np", "2", *SETTINGS, "--run-dir", tmp_path / "run"]
    done = run(words, tmp_path, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n2 rank(s) on 1 host(s), launcher mpirun, controller MPI" in done.stderr
    assert "\ndone: " in done.stderr and ">:" not in done.stdout + done.stderr
    assert_same_bits(tmp_path / "run", one_host("mpi"))
