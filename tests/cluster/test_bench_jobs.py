"""hvdgan.bench under salloc, which leaves its shell on the head node, whose /tmp the nodes do not share.

And benchmarks/gpu.sh in a job of two nodes.
"""

import json

import pytest

from launching import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SMALL = "--recipe tiny:Tiny --image-size 8 --local-batch-size 4 --steps 2 --repeats 1 --scaling weak".split()


def test_it_measures_the_nodes_of_an_allocation(cluster, folder):
    folder.mkdir()
    salloc = "salloc --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --time=10".split()
    bench = ["python", "-m", "hvdgan.bench", *SMALL, "--ranks", "1,2", "--json", "bench.json"]
    done = cluster.run([*salloc, *bench], folder, seconds=400)
    assert done.returncode == 0, done.stderr
    largest = json.loads((folder / "bench.json").read_text())["runs"][1]
    assert [process["host"] for process in largest["processes"]] == ["node1", "node2"]
    assert {len(process["cores"]) for process in largest["processes"]} == {1} and largest["controller"] == "mpi"
    assert [path.name for path in folder.iterdir()] == ["bench.json"]  # what the processes shared is gone


@pytest.mark.timeout(900)
def test_the_script_for_gpus_starts_its_ranks_on_all_nodes_of_a_job(cluster, folder):
    """As docs/performance.md starts it, but on the CPU."""
    folder.mkdir()
    parts = "--only build,equality,resume,recipes --recipe dcgan --precision float32"
    wrapped = f"{ROOT}/benchmarks/gpu.sh --cpu --quick {parts} --out out"
    size = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--time=15"]
    job = cluster.slurm("sbatch", "--parsable", *size, "--output=log.txt", "--wrap", wrapped, cwd=folder).strip()
    assert cluster.ended(job, 850)["JobState"] == "COMPLETED", (folder / "log.txt").read_text()
    found = [json.loads(line) for line in (folder / "out" / "results.jsonl").read_text().splitlines()[1:]]
    assert {(each["part"], each["verdict"]) for each in found} == {
        (part, "passed") for part in ("build", "equality", "resume", "recipes")
    }
    (together,) = [each for each in found if each["name"] == "doctor, 2 ranks"]
    assert together["command"].startswith("srun ")
    ranks = json.loads((folder / "out" / "doctor-2.json").read_text())["ranks"]
    assert [rank["host"] for rank in ranks] == ["node1", "node2"]
