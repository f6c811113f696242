"""Two ranks on two hosts over ssh: horovodrun over Gloo and MPI, Open MPI's mpirun, and the scripts around them."""

import pytest

from jobs import SETTINGS, TRAIN, assert_same_bits
from launching import ROOT

pytestmark = pytest.mark.cluster
HOSTS = "node1:1,node2:1"
LAUNCHES = {
    "horovodrun --gloo": ["horovodrun", "--gloo", "--disable-cache", "-np", "2", "-H", HOSTS, *TRAIN],
    "multi_node.sh --mpi": [ROOT / "launch" / "multi_node.sh", "-H", HOSTS, "--mpi", *SETTINGS],
    "mpirun.sh": [ROOT / "launch" / "mpirun.sh", "-H", HOSTS, *SETTINGS],
}


@pytest.mark.parametrize("launch", LAUNCHES)
def test_two_hosts_train_what_two_ranks_of_one_host_train(cluster, folder, one_host, launch):
    run_dir = folder / launch.replace(" ", "_")
    done = cluster.run([*LAUNCHES[launch], "--run-dir", run_dir])
    assert done.returncode == 0, done.stdout + done.stderr
    name = "mpirun" if "mpi" in launch else "horovodrun"
    assert f"2 rank(s) on 2 host(s), launcher {name}" in done.stdout + done.stderr
    assert_same_bits(run_dir, one_host("gloo" if "gloo" in launch else "mpi"))
