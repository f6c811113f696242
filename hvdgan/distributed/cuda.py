"""CUDA's libraries: makes TensorFlow find them, and tells why it registers no GPU."""

import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from importlib import util
from pathlib import Path

from hvdgan.launching.launched import unlaunched
from hvdgan.launching.programs import by_nvidia_smi

_SECONDS = 120.0
DRIVER = "libcuda.so.1"
_CUSOLVER = "libcusolver.so.11"
_LOOK = """
import json, re
from hvdgan.distributed import cuda
cuda.load_libraries()
import tensorflow as tf
gpus = len(tf.config.list_physical_devices("GPU"))
paths = sorted({line.split()[-1] for line in open("/proc/self/maps") if re.search(r"/lib(cu|nvidia)[^/]*\\.so", line)})
print(json.dumps([gpus, bool(tf.sysconfig.get_build_info()["is_cuda_build"]), paths]))
"""


@dataclasses.dataclass(frozen=True)
class Registration:
    """What TensorFlow meets when it looks for GPUs."""

    gpus: int  # number of GPUs that it registers
    has_cuda: bool  # False if it was built without CUDA
    opened: dict[str, str]  # path of each library that it opened, by the library's name
    missing: dict[str, str]  # the dynamic linker's reason for each library that it could not open, by its name
    driver_error: str  # answer of the driver if CUDA cannot be initialised; "" if it can

    @property
    def reason(self) -> str:
        """TensorFlow's reason for registering no GPU."""
        if not self.has_cuda:
            return "this TensorFlow is built without CUDA"
        if self.missing:
            return f"could not load {', '.join(self.missing)}"
        return self.driver_error or "the driver shows none to this process"


def load_libraries() -> None:
    """Load the library of CUDA that TensorFlow does not find by itself; call it before TensorFlow looks for GPUs.

    TensorFlow 2.21 looks for the libraries of NVIDIA's Python packages in folders that it was linked with. That of
    nvidia-cusolver is not among them, and TensorFlow registers no GPU if one library is missing. A library that is
    loaded is found by its name. Where the linker finds one, such as that of the machine's own CUDA, so does TensorFlow.
    """
    with contextlib.suppress(OSError):
        ctypes.CDLL(DRIVER)  # without a driver there is no GPU to look for
        try:
            ctypes.CDLL(_CUSOLVER)
        except OSError:
            for folder in _package_folders("nvidia.cusolver"):
                ctypes.CDLL(f"{folder}/lib/{_CUSOLVER}")


def uuid(index: int) -> str:
    """The UUID of one of the GPUs that CUDA shows this process, or of its MIG instance; "" without CUDA's driver.

    Indices are not unique on a host: two Slurm tasks may each see another GPU as number 0.
    """
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return ""
    device, found = ctypes.c_int(), ctypes.create_string_buffer(16)
    failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index)
    return "" if failed or driver.cuDeviceGetUuid_v2(found, device) else found.raw.hex()


@functools.cache
def examine() -> Registration:
    """Let TensorFlow look for GPUs in another process, which prints what it opens; this takes some seconds."""
    settings = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "dso_loader=1"}
    command = [sys.executable, "-c", _LOOK]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            env={**unlaunched(), **settings, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        gpus, has_cuda, paths = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError) as error:
        return Registration(0, True, {}, {}, f"TensorFlow ended or hung when it looked for GPUs ({error})")
    names = re.findall(r"opened dynamic library (\S+)", done.stderr)
    opened = {name: next((path for path in paths if Path(path).name.startswith(name)), name) for name in names}
    failed = re.findall(r"not load dynamic library '(\S+)'; dlerror: (.*?)(?:; LD_LIBRARY_PATH.*)?$", done.stderr, re.M)
    missing = {name: why for name, why in failed if name not in opened}
    driver = re.search(r"failed call to cuInit: .*", done.stderr)
    return Registration(gpus, has_cuda, opened, missing, driver[0] if driver else "")


def smallest_memory() -> int | None:
    """The memory of this host's smallest GPU (MiB); None if nvidia-smi does not tell."""
    found = by_nvidia_smi("memory.total", "nounits")
    return min(map(int, found)) if found and all(each.isdecimal() for each in found) else None


def _package_folders(name: str) -> list[str]:
    try:
        spec = util.find_spec(name)
    except ModuleNotFoundError:  # its parent is not installed
        return []
    return list(spec.submodule_search_locations or []) if spec else []
