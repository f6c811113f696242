"""hvdgan.bench under salloc, which leaves its shell on the head node, whose /tmp the nodes do not share."""

import json

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SMALL = "--recipe tiny:Tiny --image-size 8 --local-batch-size 4 --steps 2 --repeats 1 --scaling weak".split()


@pytest.mark.parametrize(("nodes", "ranks"), [(["node1"], "1"), (["node1", "node2"], "1,2")])
def test_it_measures_the_nodes_of_an_allocation(cluster, folder, nodes, ranks):
    here = folder / ranks
    here.mkdir(parents=True)
    salloc = ["salloc", f"--nodes={len(nodes)}", "--ntasks-per-node=1", "--cpus-per-task=1", "--time=10"]
    bench = ["python", "-m", "hvdgan.bench", *SMALL, "--ranks", ranks, "--json", "bench.json"]
    done = cluster.run([*salloc, *bench], here, seconds=400)
    assert done.returncode == 0, done.stderr
    largest = json.loads((here / "bench.json").read_text())["runs"][len(nodes) - 1]
    assert [process["host"] for process in largest["processes"]] == nodes
    assert {len(process["cores"]) for process in largest["processes"]} == {1}
    assert largest["controller"] == ("mpi" if len(nodes) > 1 else None)
    assert [path.name for path in here.iterdir()] == ["bench.json"]  # what the processes shared is gone
