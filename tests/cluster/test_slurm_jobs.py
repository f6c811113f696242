"""Jobs of a real Slurm: on two nodes by srun --mpi=pmix, on one, of seeds, elastic; hvdgan.bench; what is refused."""

import json

import numpy as np
import pytest

from jobs import STEPS, Job, assert_same_bits
from launching import SECONDS, wait_until
from saved import checkpoint

pytestmark = pytest.mark.cluster


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
    # The job keeps its limit, which would send it away once more while it starts on a slow machine.
    wait_until(lambda: job.facts()["JobState"] in ("PENDING", "RUNNING"), 60, job.facts)
    cluster.slurm("scontrol", "update", f"JobId={job.number}", "TimeLimit=10")

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


def test_one_node_trains_on_its_own_copy_of_the_data_and_removes_it(cluster, folder):
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 1), np.uint8)
    np.save(folder / "images.npy", images)
    one = "--nodes=1", "--ntasks-per-node=1"
    job = Job(cluster, folder, *one, script="single_node.sbatch", STAGE_DATA=str(folder / "images.npy"))
    job.ended("COMPLETED")
    data = json.loads((job.run_dir / "config.json").read_text())["data"]
    assert data.endswith(f"hvdgan-{job.number}/images.npy") and not data.startswith(str(folder))
    assert f"copying {folder}/images.npy to " in job.said()
    node = job.facts()["NodeList"]
    assert cluster.run(["sh", "-c", f"test ! -e {data.rpartition('/')[0]}"], folder, host=node).returncode == 0


def test_each_task_of_an_array_has_its_seed_and_its_folder(cluster, folder):
    one = "--nodes=1", "--ntasks-per-node=1", "--array=3-4"
    job = Job(cluster, folder, *one, script="array.sbatch", RUNS=str(folder / "seeds"))
    runs = [folder / "seeds" / f"seed-{seed}" for seed in (3, 4)]
    done = lambda: all(checkpoint(run, STEPS).exists() for run in runs)  # noqa: E731
    wait_until(lambda: done() and not cluster.slurm("squeue", "-h"), SECONDS, job.said)
    assert [json.loads((run / "config.json").read_text())["seed"] for run in runs] == [3, 4]


def test_an_elastic_job_trains_on_both_nodes(cluster, folder):
    job = Job(cluster, folder, script="elastic.sbatch")
    job.ended("COMPLETED")
    assert "2 rank(s) on 2 host(s)" in job.said()
    records = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))


SMALL = "--recipe tiny:Tiny --image-size 8 --local-batch-size 4 --steps 2 --repeats 1 --scaling weak".split()


def test_it_measures_the_nodes_of_an_allocation(cluster, folder):
    folder.mkdir()
    salloc = "salloc --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --time=10".split()
    bench = ["python", "-m", "hvdgan.bench", *SMALL, "--ranks", "1,2", "--json", "bench.json"]
    done = cluster.run([*salloc, *bench], folder, seconds=400)
    assert done.returncode == 0, done.stderr
    largest = json.loads((folder / "bench.json").read_text())["runs"][1]
    assert (largest["ranks"], largest["hosts"]) == (2, 2)
    assert [path.name for path in folder.iterdir()] == ["bench.json"]  # what the processes shared is gone


APART = "srun started 2 processes that Open MPI cannot bring together (--mpi={}); start with srun --mpi=pmix"
APART += " (srun --mpi=list shows the choices), or with hvdgan launch"
TWO = "--expect-size 4: there are 2 ranks (launcher: srun); start as many processes as are expected"


@pytest.mark.parametrize(
    ("mpi", "arguments", "complaint"),
    [
        # No PMI, and one that this MPI does not speak.
        ("none", [], APART.format("none")),
        ("pmi2", [], APART.format("pmi2")),
        ("pmix", ["--expect-size", "4"], TWO),
    ],
)
def test_they_are_refused_with_what_to_do(cluster, folder, mpi, arguments, complaint):
    job = Job(cluster, folder.with_name(f"refused_{mpi}"), arguments=arguments, SRUN_MPI=mpi)
    facts = job.ended("FAILED")
    said = [line for line in job.said().splitlines() if line.startswith("hvdgan: rank")]
    # The first that ends may take the other with it before that has said so too.
    assert said and set(said) <= {f"hvdgan: rank {rank}: {complaint}" for rank in (0, 1)}, job.said()
    assert facts["Restarts"] == "0"
    assert "Traceback" not in job.said() and not job.run_dir.exists()
