"""What is free on a rank's GPU, as a program on PATH says it that stands for nvidia-smi.

Module: training.memory.gpu_memory.
"""

import pytest

from hvdgan.distributed.devices import Device
from hvdgan.training.memory.gpu_memory import free_gpu_memory

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"
ROWS = [f"GPU-aa11, {A100}, 30", f"GPU-bb22, {H100}, 70", f"GPU-bb33, {H100}, 60"]
OPENABLE = ["0", "2", "3"]


@pytest.fixture
def says(tmp_path, monkeypatch):
    """A function that puts a shell script on PATH as nvidia-smi."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(script):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return write


def gpu(identity, name=H100, index=0):
    return Device("host", index, 1, identity, name, 1, 0)


@pytest.mark.parametrize(
    ("device", "openable", "expected"),
    [
        (gpu("GPU-bb22"), OPENABLE, 70),
        (gpu("GPU-aa", A100), OPENABLE, 30),  # CUDA takes a UUID's beginning
        (gpu("GPU-bb"), OPENABLE, None),
        (gpu("GPU-cc44"), OPENABLE, None),
        (gpu("/dev/nvidia2"), OPENABLE, 70),
        (gpu("/dev/nvidia3"), OPENABLE, 60),
        (gpu("/dev/nvidia3"), ["3"], None),  # nvidia-smi lists others than may be opened
        (gpu("/dev/nvidia0"), OPENABLE, None),  # CUDA's first GPU is another one than nvidia-smi's
        (gpu("1"), [], 70),
        (gpu("3"), [], None),
        (gpu("1"), OPENABLE, None),
        (gpu("MIG-bb22", f"{H100} MIG 1g.10gb"), OPENABLE, None),
        (gpu("", "", None), OPENABLE, None),
    ],
)
def test_the_row_of_the_own_gpu(says, device, openable, expected):
    says("\n".join(f"echo '{row}'" for row in ROWS))
    assert free_gpu_memory(device, openable) == (expected and expected * 2**20)


@pytest.mark.parametrize(
    "script",
    [
        "echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9",
        "echo 'No devices were found'",
        f"echo 'GPU-bb22, {H100}, [N/A]'",
        "exit 0",
    ],
)
def test_no_answer(says, script):
    says(script)
    assert free_gpu_memory(gpu("GPU-bb22"), OPENABLE) is None


def test_a_program_that_hangs_or_is_missing(says):
    assert free_gpu_memory(gpu("GPU-bb22"), OPENABLE) is None
    says("exec tail -f /dev/null")
    assert free_gpu_memory(gpu("GPU-bb22"), OPENABLE, seconds=0.2) is None
