"""A node crashes in the middle of a run, which ends and leaves no process; an elastic one continues without it."""

import json
import time

import pytest

from jobs import STEPS, Job, OverSsh, assert_same_bits, last_step
from launching import wait_until

pytestmark = pytest.mark.cluster
# 5 s of silence; 10 to 20 s until Slurm gives the node up, for which srun waits; the machine may be busy.
BOUND = 90
SOON = ["--peer-timeout", "5"]


def test_a_job_names_the_lost_node_and_resumes_when_resubmitted(cluster, folder, one_host):
    job = Job(cluster, folder, "--no-requeue", arguments=SOON, brake=True)
    job.wait_for_step(13)
    cluster.crash("node2")
    try:
        # Whichever is first: srun, which the rank that is left has told, or Slurm, which misses the node.
        facts = job.ended("FAILED", "NODE_FAIL", seconds=BOUND)
    finally:
        cluster.boot("node2")
        cluster.wait_idle()
    assert facts["Restarts"] == "0" and (facts["JobState"] == "NODE_FAIL" or facts["ExitCode"] == "1:0")
    (line,) = [line for line in job.said().splitlines() if "has been silent" in line]
    assert line.startswith("hvdgan: rank 0: rank 1 (host node2, pid ") and "has been silent for 5 s" in line
    assert "--resume auto resumes it from the last checkpoint" in line
    assert line.partition("rank 0: ")[2] in (job.run_dir / "log.txt").read_text()

    job = Job(cluster, folder)
    job.ended("COMPLETED")
    assert "resuming at step 10 of" in job.said()
    assert_same_bits(job.run_dir, one_host("mpi"))


# Over Gloo: the mpirun of Open MPI 4 waits for a host that is gone, although the ranks have ended.
def test_over_ssh_it_ends_by_name_and_leaves_no_process(cluster, folder):
    run = OverSsh(cluster, folder, "multi_node.sh", "--gloo", arguments=SOON)
    cluster.crash("node2")
    try:
        assert run.ended(BOUND) not in (0, 75)
        assert "rank 1 (host node2, pid " in run.said() and "has been silent for 5 s" in run.said()
        left = lambda: cluster.run(["pgrep", "-af", f"hvdgan.train.*{folder}"], host="node1").stdout  # noqa: E731
        wait_until(lambda: not left(), BOUND, left)
    finally:
        cluster.boot("node2")
        cluster.wait_idle()


def test_a_node_that_is_cut_off_for_half_a_minute_ends_nothing(cluster, folder):
    """Not in a job: Slurm here gives a node up after 10 s, by default after 300."""
    run = OverSsh(cluster, folder, "multi_node.sh", "--gloo", arguments=["--peer-timeout", "120"])
    cluster.cut_off("node2")
    before = last_step(run.run_dir)
    time.sleep(30)
    cluster.cut_off("node2", ends=True)
    assert last_step(run.run_dir) <= before + 2
    assert run.ended() == 0 and "lost" not in run.said() and last_step(run.run_dir) == STEPS, run.said()
    cluster.wait_idle()


def test_an_elastic_run_continues_without_the_node_and_takes_it_in_again(cluster, folder):
    # A host that is cut off closes no connection: Gloo waits for it that long, launch/elastic.sh says 120.
    soon = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "30"}
    arguments = ["--commit-every", "5", "--peer-timeout", "5"]
    run = OverSsh(cluster, folder, "elastic.sh", "--interface", "eth0", arguments=arguments, **soon)
    run.wait_for_step(13)
    cluster.crash("node2")
    try:
        wait_until(lambda: "1 rank(s) resume at step 1" in run.said(), 180, run.said)
        run.wait_for_step(last_step(run.run_dir) + 3)
    finally:
        cluster.boot("node2")
    run.wait_until(lambda: "2 rank(s) resume at step" in run.said())
    assert run.ended() == 0 and "2 rank(s) resume at step" in run.said(), run.said()
    records = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    cluster.wait_idle()
