"""A Horovod without Gloo on Open MPI 5, as conda-forge builds it: what works with it, and what is refused by name.

Modules: distributed.joining.
"""

import json

import pytest

import openmpi5
from launching import ROOT, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]  # the first test builds Horovod
TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 16 --steps 4 --run-dir run".split()
WITHOUT = "this Horovod was built without"


@pytest.fixture(scope="module")
def environment():
    openmpi5.make()
    return openmpi5.environment()


def refused(words, folder, **environment):
    """The one line with which a command refuses its user's wish."""
    done = run(words, folder, **environment)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (folder / "run").exists()
    return done.stderr


def test_the_doctor_accepts_it_and_mpirun_trains_and_resumes_by_the_same_command(tmp_path, environment):
    done = run(["python", "-m", "hvdgan.doctor", "--json", "facts.json"], tmp_path, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["check"]: row for row in json.loads((tmp_path / "facts.json").read_text())["rows"]}
    assert rows["Horovod"]["verdict"] == "ok"
    assert "without Gloo: no elastic runs, no horovodrun --gloo" in rows["Horovod"]["found"]
    assert (rows["MPI"]["verdict"], rows["MPI"]["hint"]) == ("warn", "start with hvdgan launch, or srun --mpi=pmix")
    for steps, said in (("2", "2 steps"), ("4", "4 steps")):
        words = ["python", "-m", "hvdgan.launch", "-np", "2", *TINY, "--max-steps", steps]
        done = run(words, tmp_path, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 rank(s) on 1 host(s), launcher mpirun, controller MPI, collectives MPI" in done.stdout + done.stderr
        assert f"done: {said}" in (tmp_path / "run" / "log.txt").read_text()


def test_elastic_runs_are_refused_by_name(tmp_path, environment):
    hosts = ["-H", "localhost:1,127.0.0.1:1", "--interface", "lo"]
    line = refused([ROOT / "launch" / "elastic.sh", *hosts, *TINY], tmp_path, **environment)
    assert f"{WITHOUT} Gloo" in line
    elastic = {"HOROVOD_ELASTIC": "1", "HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"}
    line = refused(["python", "-m", "hvdgan.train", *TINY], tmp_path, **environment, **elastic)
    assert f"elastic runs go over Gloo, and {WITHOUT}" in line
