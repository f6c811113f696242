"""The libraries of CUDA: TensorFlow registers a GPU, or commands say why not and do not compute on the CPU instead."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import make_believe_driver
from launching import ROOT, copy_sources, run, train

TINY = ["--recipe", "tiny:Tiny", "--image-size", "8", "--steps", "2"]


@pytest.fixture
def has_gpu(tmp_path):
    """The variables of a machine on which nvidia-smi lists a GPU."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho NVIDIA H100\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}


def test_no_command_computes_on_the_cpu_of_a_machine_with_a_gpu_unless_that_is_meant(tmp_path, has_gpu):
    """The TensorFlow of these tests is that for CPUs."""
    train(tmp_path, *TINY, "--run-dir", "run", CUDA_VISIBLE_DEVICES="", **has_gpu)
    for words in (["train", *TINY, "--run-dir", "new"], ["sample", "run", "--out", "new.png"], ["evaluate", "run"]):
        done = run([sys.executable, "-m", "hvdgan", *words], tmp_path, **has_gpu)
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.count("\n") == 1 and "NVIDIA H100" in done.stderr and "built without CUDA" in done.stderr
    assert not list(tmp_path.glob("new*"))


def test_the_driver_tells_which_gpu_a_process_sees(tmp_path):
    """Without a driver, as in these tests, nothing is known."""
    words = [sys.executable, "-c", "from hvdgan.distributed import cuda; print([cuda.uuid(0)])"]
    assert run(words, tmp_path).stdout == "['']\n"
    make_believe_driver.install(tmp_path, Path(tf.__file__).parent)
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
    make_believe_driver.install(folder / "driver", packages / "tensorflow")
    hvdgan = [folder / "venv" / "bin" / "python", "-m", "hvdgan"]
    env = {"PYTHONPATH": "", "LD_LIBRARY_PATH": str(folder / "driver")}
    done = run([*hvdgan, "doctor", "--json", "-"], folder / "driver", **env)
    rows = {row["check"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["GPUs"]["verdict"] == "ok" and rows["GPUs"]["found"].startswith("1 ")
    assert "nvidia/cusolver/lib" in rows["libcusolver.so.11"]["found"]
    (packages / "nvidia/cufft/lib/libcufft.so.11").unlink()
    done = run([*hvdgan, "train", "--max-steps", "1"], folder / "driver", **env, **has_gpu)
    assert done.returncode == 2 and "could not load libcufft.so.11;" in done.stderr.splitlines()[-1]
    shutil.rmtree(folder / "venv")
