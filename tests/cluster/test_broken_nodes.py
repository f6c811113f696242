"""Jobs on some of eight nodes: one that is broken, or cut off from another, is named, and the job runs without it."""

import pytest

from cluster import ADDRESSES, Cluster
from jobs import Job, assert_same_bits

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster():
    with Cluster(nodes=8) as cluster:
        yield cluster


@pytest.fixture
def on(cluster):
    """Run a command of root's on a node."""

    def run(node, *command):
        done = cluster.run([*command], host=node)
        assert done.returncode == 0, done.stderr

    return run


def test_spare_nodes_replace_one_without_the_shared_folder(cluster, folder, one_host, on):
    folder.mkdir()
    on("node2", "mount", "-t", "tmpfs", "tmpfs", folder)
    try:
        job = Job(cluster, folder, "--nodes=8", SPARE_NODES="6")
        job.ended("COMPLETED")
    finally:
        on("node2", "umount", folder)
    said = job.said()
    assert f"node2: it does not see {folder} as the first node does: is a file system not mounted?; it is left" in said
    assert "2 rank(s) on 2 host(s), launcher srun" in said
    assert_same_bits(job.run_dir, one_host("mpi"))


def test_a_job_without_a_spare_node_comes_back_on_others(cluster, folder, on):
    cluster.wait_idle()  # so that it gets the first two
    folder.mkdir()
    on("node2", "mount", "-t", "tmpfs", "tmpfs", folder)
    try:
        job = Job(cluster, folder)
        facts = job.ended("COMPLETED")
    finally:
        on("node2", "umount", folder)
    assert "node2 broken, spare nodes: 0; requeueing without node2, 1 of at most 20 times" in job.said()
    assert (facts["ExcNodeList"], facts["Restarts"]) == ("node2", "1") and "2" not in facts["NodeList"]


def test_a_firewall_between_two_nodes(cluster, folder, on):
    cluster.wait_idle()
    route = "prohibit", f"{ADDRESSES['node2']}/32"
    on("node3", "ip", "route", "add", *route)
    try:
        job = Job(cluster, folder, "--nodes=3", SPARE_NODES="1")
        job.ended("COMPLETED")
    finally:
        on("node3", "ip", "route", "del", *route)
    assert "hvdgan: node3: no connection between node2 and node3: " in job.said()
    assert "does a firewall block it?; it is left out" in job.said()
