"""Jobs of a real Slurm on two nodes, through slurm/multi_node.sbatch and srun --mpi=pmix."""

import pytest

from jobs import Job, assert_same_bits
from launching import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_a_job_on_two_nodes_trains_what_two_ranks_of_one_host_train(cluster, folder, one_host):
    job = Job(cluster, folder)
    facts = job.ended("COMPLETED")
    assert facts["ExitCode"] == "0:0" and facts["NodeList"] == "node[1-2]"
    assert "2 rank(s) on 2 host(s), launcher srun" in job.said()
    assert_same_bits(job.run_dir, one_host("mpi"))


def test_a_job_that_is_sent_away_again_and_again_ends_with_the_bits_of_one_left_alone(cluster, folder, one_host):
    job = Job(cluster, folder, "--signal=B:USR2@60", brake=True, MAX_REQUEUES="2")

    # The time limit. Slurm looks at its clock every 30 s, and may be a minute early with the signal.
    job.wait_for_step(3)
    cluster.slurm("scontrol", "update", f"JobId={job.number}", "TimeLimit=2")
    job.wait_for("requeueing, 1 of at most 2")
    assert "USR2" in job.said()

    # An administrator's hand.
    stopped = job.step()
    job.wait_for_step(stopped + 3)
    assert job.facts()["Restarts"] == "1"
    cluster.slurm("scontrol", "requeue", job.number)
    wait_until(lambda: job.facts()["Restarts"] == "2", 60, job.facts)

    # Preemption, as far as the ranks can tell: a signal to the steps. Twice was enough: it does not come back.
    stopped = job.step()
    job.wait_for_step(stopped + 3)
    cluster.slurm("scancel", "--signal=USR1", job.number)
    assert job.ended("FAILED")["ExitCode"] == "75:0"
    assert "SIGUSR1" in job.said()
    assert "requeued 2 times already (MAX_REQUEUES=2); the same sbatch resumes the run" in job.said()

    # As it says.
    again = Job(cluster, folder)
    again.ended("COMPLETED")
    assert_same_bits(again.run_dir, one_host("mpi"))
