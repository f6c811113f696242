"""Checks by hvdgan.doctor that this installation can use the GPUs: alone before anything else, and with all ranks."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu.check import Check
from gpu.setting import Setting

SECONDS = 600
_NO_ANSWER = "hvdgan.doctor gives no answer"


def examine(cpu: bool) -> dict[str, Any]:
    """Run the doctor in one process.

    Args:
        cpu: True to leave the GPUs alone.

    Returns:
        The contents of its --json; empty if it gives no answer.
    """
    with tempfile.TemporaryDirectory(prefix="hvdgan-gpu-") as folder:
        out = Path(folder) / "doctor.json"
        command = [sys.executable, "-m", "hvdgan.doctor", "--json", str(out), "--run-dir", f"{folder}/runs"]
        try:
            subprocess.run(command, capture_output=True, timeout=SECONDS, env=_environment(cpu), check=False)
            found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return {}
    return found


def _environment(cpu: bool) -> dict[str, str]:
    return {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if cpu else {})}


def problem(facts: Mapping[str, Any], ranks: int, *, cpu: bool) -> str:
    """Say in one line why this installation cannot do the checks; empty if it can.

    Args:
        facts: contents of the doctor's --json.
        ranks: largest number of ranks.
        cpu: True if the checks run on the CPU.
    """
    command = "make setup" if cpu else "HVDGAN_GPU=1 make setup"
    why = _why(facts, ranks, cpu=cpu)
    return f"{why}; run {command}" if why else ""


def _why(facts: Mapping[str, Any], ranks: int, *, cpu: bool) -> str:
    if not facts:
        return _NO_ANSWER
    # horovodrun that cannot drive the MPI is no obstacle: the launch scripts use Gloo then.
    failed = [row for row in facts["rows"] if row["verdict"] == "fail" and row["check"] != "MPI"]
    seen = facts["ranks"][0]["gpus"] if facts["ranks"] else 0
    build = facts["horovod"]
    if failed:
        return f"{failed[0]['check']}: {failed[0]['found']}"
    if not cpu and not seen:
        return "TensorFlow sees no GPU: this is its build for CPUs, or CUDA's libraries are missing"
    if ranks > 1 and build is None:
        return "Horovod is not installed"
    if ranks > 1 and not cpu and not build["nccl"]:
        return "Horovod was built without NCCL: gradients would go through main memory"
    return ""


def uses_gloo(facts: Mapping[str, Any]) -> bool:
    """Whether horovodrun must be told to use Gloo, because it cannot drive the MPI that is here."""
    return any(row["check"] == "MPI" and row["verdict"] == "fail" for row in facts.get("rows", []))


def checks(setting: Setting) -> Iterator[Check]:
    """Run the doctor on all ranks, which also measures the all-reduce between them."""
    if setting.most == 1:
        yield Check(name="all ranks", verdict="not run", found=f"there is one {setting.device}")
        return
    out = setting.out / "doctor.json"
    words = ["--json", str(out), "--run-dir", str(setting.out / "runs")]
    words += ["--max-bytes", "4MB", "--seconds", "0.1"] if setting.quick else []
    done = setting.launch("build/doctor", "hvdgan.doctor", words, setting.most)
    found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    rates = found.get("allreduce", [])
    whole = bool(rates) and found["size"] == setting.most
    yield Check(
        name=f"{setting.most} ranks join, and all-reduce",
        verdict="passed" if done.code == 0 and whole else "failed",
        found=f"{rates[-1]['bytes_per_sec'] / 1e9:.3g} GB/s with {rates[-1]['bytes'] / 2**20:.0f} MiB" if rates else "",
        figures={"doctor": found},
        errors=done.errors or (() if whole else ("the ranks did not all join",)),
        command=done.words,
        seconds=done.seconds,
    )
