"""The other jobs of slurm/ on a real Slurm: one node with staged data, seeds, an elastic run."""

import json

import numpy as np
import pytest

from jobs import STEPS, Job
from launching import SECONDS, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


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
    last = f"step-{STEPS:08d}"
    done = lambda: all((run / "checkpoints" / last).exists() for run in runs)  # noqa: E731
    wait_until(lambda: done() and not cluster.slurm("squeue", "-h"), SECONDS, job.said)
    assert [json.loads((run / "config.json").read_text())["seed"] for run in runs] == [3, 4]


def test_an_elastic_job_trains_on_both_nodes(cluster, folder):
    job = Job(cluster, folder, script="elastic.sbatch")
    job.ended("COMPLETED")
    assert "2 rank(s) on 2 host(s)" in job.said()
    records = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
