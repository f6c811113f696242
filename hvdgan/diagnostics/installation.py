"""Checks the installation: Python, TensorFlow, Keras, GPUs, Horovod, NCCL and MPI."""

import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any

from hvdgan.diagnostics.table import Row
from hvdgan.distributed import cuda
from hvdgan.launching.launched import launched
from hvdgan.launching.programs import by_nvidia_smi, output_of
from hvdgan.launching.starters import mpi_kind

SETUP = "launch/setup.sh builds it"


def python() -> Row:
    """Check the version of Python."""
    version = platform.python_version()
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    hint = "" if fits else "hvdgan is tested with Python 3.11 to 3.13"
    return Row("Python", f"{version} ({sys.executable})", "ok" if fits else "fail", hint)


def tensorflow() -> Row:
    """Check the version of TensorFlow, which this imports."""
    import tensorflow as tf

    fits = tf.__version__.startswith(("2.18.", "2.19.", "2.20.", "2.21."))
    hint = "" if fits else "hvdgan is tested with 2.18 to 2.21, which launch/setup.sh installs (HVDGAN_TF)"
    return Row("TensorFlow", tf.__version__, "ok" if fits else "warn", hint)


def keras() -> Row:
    """Check the version of Keras, which this imports."""
    import keras

    fits = keras.__version__.startswith("3.")
    hint = "" if fits else "Keras 3.15 or later: launch/setup.sh; TF_USE_LEGACY_KERAS must not be set"
    return Row("Keras", keras.__version__, "ok" if fits else "fail", hint)


def gpus(seen: int) -> Iterator[Row]:
    """Check each library that TensorFlow opens for GPUs, and compare its GPUs with those of nvidia-smi."""
    import tensorflow as tf

    from hvdgan.distributed import devices

    lost = "" if seen else devices.lost_gpus()
    if tf.sysconfig.get_build_info()["is_cuda_build"]:
        registration = cuda.examine()
        yield from (Row(name, path) for name, path in registration.opened.items())
        for name, why in registration.missing.items():
            hint = "NVIDIA's driver brings it" if name == cuda.DRIVER else "HVDGAN_GPU=1 launch/setup.sh"
            yield Row(name, why, *(("fail", hint) if lost else ()))
    there = by_nvidia_smi("name")
    found = f"{seen} seen by TensorFlow" + (f", {len(there)} by nvidia-smi ({there[0]})" if there else "")
    hint = f"HVDGAN_GPU=1 launch/setup.sh; {devices.CPU_MEANT}"
    yield Row("GPUs", f"{found}; {lost}", "fail", hint) if lost else Row("GPUs", found)


def cpu_name() -> str:
    """Return the model of this host's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def horovod(build: Mapping[str, Any]) -> Row:
    """Check that Horovod has a controller."""
    names = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL", "cuda": "CUDA", "rocm": "ROCm"}
    kinds = [name for key, name in names.items() if build[key]]
    found = f"{build['version']} with {', '.join(kinds)}; built for TensorFlow {horovod_built_for() or 'unknown'}"
    if not (build["mpi"] or build["gloo"]):
        return Row("Horovod", found, "fail", f"it has neither MPI nor Gloo: {SETUP}")
    return Row("Horovod", found if build["gloo"] else f"{found}; without Gloo: no elastic runs, no horovodrun --gloo")


def horovod_built_for() -> str | None:
    """The TensorFlow that Horovod was compiled for, or None, by its files: its library may not fit this one."""
    spec = util.find_spec("horovod")
    if spec is None or spec.origin is None:
        return None
    try:
        return json.loads((Path(spec.origin).parent / "metadata.json").read_text(encoding="utf-8")).get("tensorflow")
    except (OSError, ValueError, AttributeError):
        return None


def nccl(build: Mapping[str, Any], seen: int) -> Row:
    """Check that gradients of GPUs are reduced by NCCL."""
    code = build["nccl"]
    # NCCL 2.9 and later encode their version as major * 10000 + minor * 100 + patch.
    found = f"{code // 10000}.{code // 100 % 100}.{code % 100}" if code >= 20900 else "yes" if code else "none"
    if seen and not code:
        return Row("NCCL", found, "warn", "gradients go through main memory: CUDA_HOME=/… launch/setup.sh builds it in")
    return Row("NCCL", found if code else "none (not needed without a GPU)" if not seen else found)


def mpi(build: Mapping[str, Any] | None) -> Row:
    """Check that horovodrun can drive the mpirun on the PATH, by the rule of launch/choose.sh."""
    text = output_of(["mpirun", "--version"])
    kind, version = mpi_kind(text)
    has_mpi, has_gloo = bool(build and build["mpi"]), bool(build and build["gloo"])
    over_gloo = "horovodrun --gloo" if has_gloo else "srun --mpi=pmix"
    # If Horovod was built with MPI, horovodrun prefers it. Under another launcher horovodrun is not needed.
    matters = has_mpi and launched()[0] == "none"
    if not text:
        hint = f"Horovod was built with MPI: load it, or {over_gloo}"
        return Row("MPI", "no mpirun on the PATH", *(("warn", hint) if matters else ()))
    if not kind:
        found = f"unknown: {text.splitlines()[0][:60]}"
        return Row("MPI", found, *(("fail", f"horovodrun does not know it: {over_gloo}") if matters else ()))
    if kind == "Open MPI" and version.partition(".")[0] != "4":
        hint = f"start with hvdgan launch, or {over_gloo}"
        found = f"{kind} {version}; horovodrun cannot drive it"
        # Without Gloo only mpirun and srun can start it, and they work: a warning is enough.
        return Row("MPI", found, *(("fail" if has_gloo else "warn", hint) if matters else ()))
    used = "" if has_mpi or build is None else "; Horovod was built without"
    return Row("MPI", f"{kind} {version}; horovodrun can drive it{used}")


def package_version(name: str) -> str | None:
    """Return the version of an installed package, or of its -cpu variant; None if neither is installed."""
    for each in (name, f"{name}-cpu"):
        try:
            return importlib.metadata.version(each)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def same_versions(everyones: Sequence[Mapping[str, Any]]) -> Row:
    """Check that all ranks have the same versions."""
    first = everyones[0]["versions"]
    for rank, each in enumerate(everyones):
        for name, version in each["versions"].items():
            if version != first[name]:
                found = f"rank 0 has {name} {first[name]}, rank {rank} on {each['host']} has {version}"
                return Row("versions", found, "fail", "install the same on every host; training refuses to start")
    return Row("versions", "the same on every rank")
