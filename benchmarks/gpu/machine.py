"""The machine and the software on it, as far as they explain the figures; nothing here loads TensorFlow."""

import importlib.metadata
import os
import platform
import time
from typing import Any

from gpu.setting import ROOT, Setting
from hvdgan import __version__
from hvdgan.cli.programs import output_of
from hvdgan.diagnostics.installation import cpu_name, package_version
from hvdgan.training.code_state import git_state

_QUERY = "name,memory.total,driver_version,compute_cap"
_LIBRARIES = ("cuda-runtime", "cudnn", "nccl")
_PACKAGES = ("tensorflow", "keras", "horovod", "numpy")


def facts(setting: Setting) -> dict[str, Any]:
    """Describe the machine, as JSON types.

    Args:
        setting: settings of the script.
    """
    gpus = [] if setting.cpu else gpus_here()
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "hosts": setting.nodes,
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": gpus,
        "links": [] if setting.cpu else output_of(["nvidia-smi", "topo", "-m"]).expandtabs(6).splitlines(),
        "versions": versions(),
        "code": git_state(ROOT) or "no git repository",
    }


def gpus_here() -> list[dict[str, str]]:
    """Return name, memory, driver and compute capability of each GPU of this host, as nvidia-smi writes them."""
    lines = output_of(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]).splitlines()
    cells = [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]
    return [dict(zip(_QUERY.split(","), each, strict=False)) for each in cells]


def versions() -> dict[str, str]:
    """Return the versions of Python, hvdgan, its libraries, and NVIDIA's packages from PyPI."""
    found = {name: version for name in _PACKAGES if (version := package_version(name))}
    for package in importlib.metadata.distributions():
        name = (package.metadata["Name"] or "").lower()
        for library in _LIBRARIES:
            if name.startswith(f"nvidia-{library}"):
                found[name] = package.version
    return {"python": platform.python_version(), "hvdgan": __version__, **found}
