"""The libraries of CUDA: TensorFlow registers a GPU, or commands say why not and do not compute on the CPU instead.

TensorFlow opens libcuda.so.1 and libnvidia-ml.so.1 by their names and calls what its own library exports stubs for.
Here each of these functions succeeds and does nothing, but for those that say what the GPU is.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from launching import ROOT, copy_sources, run, train
from machine import Machine

# cuDeviceGetAttribute: threads of a block, its size, the grid's, shared memory, warp, registers, multiprocessors,
# threads of a multiprocessor, compute capability 9.0, the larger shared memories, registers of a multiprocessor.
_ATTRIBUTES = {1: 1024, 2: 1024, 3: 1024, 4: 64, 5: 65535, 6: 65535, 7: 65535, 8: 49152, 10: 32, 12: 65536, 16: 132}
_ATTRIBUTES |= {39: 2048, 75: 9, 76: 0, 81: 233472, 82: 65536, 97: 232448}
_SPOKEN = {
    "cuInit": "(unsigned flags) { return 0; }",
    "cuDeviceGet": "(int *out, int number) { *out = number; return 0; }",
    "cuDeviceGetAttribute": "(int *out, int which, int device) { *out = attribute(which); return 0; }",
    "cuDeviceGetName": '(char *out, int size, int device) { snprintf(out, size, "Make-believe"); return 0; }',
    "cuDeviceGetPCIBusId": '(char *out, int size, int device) { snprintf(out, size, "0000:01:00.0"); return 0; }',
    "cuDeviceGetUuid": "(char *out, int device) { memset(out, 1, 16); return 0; }",
    "cuDeviceGetUuid_v2": "(char *out, int device) { memset(out, 1, 16); return 0; }",
    "cuDeviceTotalMem_v2": "(size_t *out, int device) { *out = memory; return 0; }",
    "cuMemGetInfo_v2": "(size_t *left, size_t *all) { *left = *all = memory; return 0; }",
    "cuGetErrorName": '(int code, const char **out) { *out = "MAKE_BELIEVE"; return 0; }',
    "cuGetErrorString": '(int code, const char **out) { *out = "make-believe"; return 0; }',
    "cuGetExportTable": "(const void **out, const void *id) { *out = 0; return 999; }",
    "cuGetProcAddress": "(const char *name, void **out) { return found(name, out); }",
    "cuGetProcAddress_v2": "(const char *name, void **out, int version, long flags, int *status)"
    " { int code = found(name, out); if (status) *status = code != 0; return code; }",
}
_NUMBERS = {"cuDeviceGetCount": 1, "cuDriverGetVersion": 13000, "cuCtxGetDevice": 0}
_SPOKEN |= {name: f"(int *out) {{ *out = {value}; return 0; }}" for name, value in _NUMBERS.items()}
_HANDLES = "DevicePrimaryCtxRetain CtxGetCurrent StreamCreate StreamCreateWithPriority EventCreate".split()
_SPOKEN |= {f"cu{name}": "(void **out, ...) { *out = &handle; return 0; }" for name in _HANDLES}
_HEAD = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
static size_t memory = 80ul << 30;
static int handle;
static int attribute(int which) {{
    switch (which) {{ {" ".join(f"case {which}: return {value};" for which, value in _ATTRIBUTES.items())} }}
    return 1;
}}
/* A name of the driver's interface is that of its second version where there is one. */
static int found(const char *name, void **out) {{
    char second[256];
    void *self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    snprintf(second, sizeof second, "%s_v2", name);
    *out = dlsym(self, second);
    if (!*out) *out = dlsym(self, name);
    return *out ? 0 : 500;
}}
"""


def install_driver(folder: Path, tensorflow: Path) -> None:
    """Compile the two libraries of NVIDIA's driver for a GPU that does not exist, which compute nothing.

    They go into a folder for LD_LIBRARY_PATH; TensorFlow's own library says which functions it calls.
    """
    framework = tensorflow / "libtensorflow_framework.so.2"
    exported = subprocess.check_output(["nm", "-D", "--defined-only", framework], text=True, timeout=120)
    silent = set(re.findall(r" [TW] (cu[A-Z]\w+)$", exported, re.MULTILINE)) - _SPOKEN.keys()
    source = _HEAD + "".join(f"int {name}{body}\n" for name, body in _SPOKEN.items())
    _compile(folder, "libcuda.so.1", source, silent)
    monitored = {name.decode() for name in re.findall(rb"\0(nvml[A-Z]\w+)\0", framework.read_bytes())}
    _compile(folder, "libnvidia-ml.so.1", "", {*monitored, "nvmlInit_v2"})


def _compile(folder: Path, name: str, source: str, silent: set[str]) -> None:
    path = folder / f"{name}.c"
    path.write_text(source + "".join(f"int {each}(void) {{ return 0; }}\n" for each in sorted(silent)))
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", folder / name, path, "-ldl"], check=True, timeout=120)


TINY = ["--recipe", "tiny:Tiny", "--image-size", "8", "--steps", "2"]


@pytest.fixture
def has_gpu(tmp_path):
    """The variables of a machine on which nvidia-smi lists a GPU."""
    machine = Machine(tmp_path)
    machine.has(**{"nvidia-smi": "echo NVIDIA H100"})
    return {"PATH": machine.environment()["PATH"]}


@pytest.mark.long
def test_no_command_computes_on_the_cpu_of_a_machine_with_a_gpu_unless_that_is_meant(tmp_path, has_gpu):
    """The TensorFlow of these tests is that for CPUs."""
    train(tmp_path, *TINY, "--run-dir", "run", CUDA_VISIBLE_DEVICES="", **has_gpu)
    for words, variables, asked in (
        (["train", *TINY, "--run-dir", "new"], has_gpu, "NVIDIA H100"),
        (["sample", "run", "--out", "new.png"], has_gpu, "NVIDIA H100"),
        (["evaluate", "run"], {"CUDA_VISIBLE_DEVICES": "0"}, "CUDA_VISIBLE_DEVICES=0 names some"),
    ):
        done = run([sys.executable, "-m", "hvdgan", *words], tmp_path, **variables)
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.count("\n") == 1 and asked in done.stderr and "built without CUDA" in done.stderr
    assert not list(tmp_path.glob("new*"))


def test_the_driver_tells_which_gpu_a_process_sees(tmp_path):
    """Without a driver, as in these tests, nothing is known."""
    words = [sys.executable, "-c", "from hvdgan.distributed import cuda; print([cuda.uuid(0)])"]
    assert run(words, tmp_path).stdout == "['']\n"
    install_driver(tmp_path, Path(tf.__file__).parent)
    assert run(words, tmp_path, LD_LIBRARY_PATH=str(tmp_path)).stdout == f"['{'01' * 16}']\n"


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_tensorflow_registers_the_gpu_after_pip_install_and_a_library_that_is_missing_is_named(tmp_path, has_gpu):
    """The package with its extra gpu, installed as README says into an environment of its own, beside a driver."""
    folder = tmp_path / "gpu"
    copy_sources(folder)
    (folder / "driver").mkdir()
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=120)
    pins = [word for name in ("", "-2.21") for word in ("-c", ROOT / "launch" / f"constraints{name}.txt")]
    command = [folder / "venv" / "bin" / "pip", "install", "-q", *pins, ".[gpu]"]
    subprocess.run(command, cwd=folder, check=True, timeout=1200)
    (packages,) = folder.glob("venv/lib/python3*/site-packages")
    install_driver(folder / "driver", packages / "tensorflow")
    hvdgan = [folder / "venv" / "bin" / "python", "-m", "hvdgan"]
    env = {"PYTHONPATH": "", "LD_LIBRARY_PATH": str(folder / "driver")}
    run([*hvdgan, "doctor", "--json", "facts.json"], folder / "driver", **env)
    rows = {row["check"]: row for row in json.loads((folder / "driver" / "facts.json").read_text())["rows"]}
    assert rows["GPUs"]["verdict"] == "ok" and rows["GPUs"]["found"].startswith("1 ")
    assert "nvidia/cusolver/lib" in rows["libcusolver.so.11"]["found"]
    (packages / "nvidia/cufft/lib/libcufft.so.11").unlink()
    done = run([*hvdgan, "train", "--max-steps", "1"], folder / "driver", **env, **has_gpu)
    assert done.returncode == 2 and "could not load libcufft.so.11;" in done.stderr.splitlines()[-1]
    shutil.rmtree(folder / "venv")
