"""Checks of the place a process stands in, without TensorFlow, Horovod or other ranks."""

import json
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import util
from pathlib import Path
from typing import Any

from hvdgan.cli.launcher import launched
from hvdgan.cli.lock import take
from hvdgan.diagnostics.table import Row

_SECONDS = 30
_NO_FLOCK = "mount it with flock (Lustre: -o flock), and never train twice into one folder"
_GIB = 2**30
SETUP = "launch/setup.sh builds it"


def python() -> Row:
    """The interpreter."""
    version = platform.python_version()
    fits = (3, 10) <= sys.version_info[:2] < (3, 13)
    hint = "" if fits else "Horovod 0.28.1 with TensorFlow 2.18 takes Python 3.10, 3.11 or 3.12"
    return Row("Python", f"{version} ({sys.executable})", "ok" if fits else "fail", hint)


def horovod_built_for() -> str | None:
    """The TensorFlow that the installed Horovod says it was compiled against; None: it is not there or does not say.

    Read from its files: importing it would load a library that may not fit.
    """
    spec = util.find_spec("horovod")
    if spec is None or spec.origin is None:
        return None
    try:
        return json.loads((Path(spec.origin).parent / "metadata.json").read_text(encoding="utf-8")).get("tensorflow")
    except (OSError, ValueError, AttributeError):
        return None


def mpi(build: Mapping[str, Any] | None) -> Row:
    """The mpirun on the PATH, and whether horovodrun can drive it (the rule of launch/choose.sh).

    Args:
        build: what Horovod was built with; None: there is none that can be imported.
    """
    said = _output(["mpirun", "--version"])
    kind, version = flavour(said)
    has_mpi, has_gloo = bool(build and build["mpi"]), bool(build and build["gloo"])
    over_gloo = "horovodrun --gloo" if has_gloo else "build Horovod again (launch/setup.sh)"
    started = launched()[0]
    if not said:
        if has_mpi and started == "none":
            return Row("MPI", "no mpirun on the PATH", "warn", f"Horovod was built with MPI: load it, or {over_gloo}")
        return Row("MPI", "no mpirun on the PATH")
    if not kind:
        found = f"unknown: {said.splitlines()[0][:60]}"
        bad = has_mpi and started == "none"
        return Row("MPI", found, "fail" if bad else "ok", f"horovodrun does not know it: {over_gloo}" if bad else "")
    if kind == "Open MPI" and version.partition(".")[0] != "4":
        # horovodrun prefers MPI wherever Horovod was built with it.
        bad = has_mpi and started == "none"
        hint = f"horovodrun cannot drive it: start with mpirun, or {over_gloo}" if bad else ""
        return Row("MPI", f"{kind} {version}; horovodrun cannot drive it", "fail" if bad else "ok", hint)
    used = "" if has_mpi or build is None else "; Horovod was built without"
    return Row("MPI", f"{kind} {version}; horovodrun can drive it{used}")


def flavour(said: str) -> tuple[str, str]:
    """Kind and version of an MPI from what `mpirun --version` says; the kinds are those that horovodrun tells apart."""
    names = {
        "Open MPI": ("Open MPI", "OpenRTE"),
        "Spectrum MPI": ("IBM Spectrum MPI",),
        "MPICH": ("MPICH",),
        "Intel MPI": ("Intel(R) MPI",),
    }
    kind = next((kind for kind, words in names.items() if any(word in said for word in words)), "")
    version = re.search(r"\d+(\.\d+)+", said)
    return kind, version[0] if version else ""


def gpus() -> list[str]:
    """The names of the GPUs that nvidia-smi finds on this host."""
    found = _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return [line.strip() for line in found.splitlines() if line.strip()]


def launcher() -> Row:
    """What has started this process, and how it lets the processes find each other."""
    name, size, _ = launched()
    if name == "none":
        return Row("launcher", "none: one process", hint="horovodrun -np N, mpirun or srun before the same command")
    meeting = [
        words
        for words, variable in (
            ("Gloo", "HOROVOD_GLOO_RENDEZVOUS_ADDR"),
            ("PMIx", "PMIX_RANK"),
            ("PMI", "PMI_RANK"),
            ("Open MPI", "OMPI_COMM_WORLD_RANK"),
        )
        if variable in os.environ
    ]
    found = f"{name}, {size} process(es), {' and '.join(meeting) or 'no PMI'}"
    if name == "srun" and size > 1 and not meeting:
        return Row("launcher", found, "fail", "every task would be rank 0 of 1: srun --mpi=pmix")
    return Row("launcher", found)


def slurm() -> Row | None:
    """The allocation, and whether as many processes were started as it has tasks; None: there is none."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    name, size, _ = launched()
    tasks = os.environ.get("SLURM_NTASKS", "")
    found = f"job {job}, {os.environ.get('SLURM_JOB_NUM_NODES', '?')} node(s), {tasks or '?'} task(s)"
    if not tasks.isdigit() or int(tasks) == size:
        return Row("Slurm", found)
    if name == "none":
        return Row("Slurm", found, "warn", "this is one process: srun --mpi=pmix starts one for each task")
    return Row("Slurm", found, "fail", f"{name} started {size} process(es): start as many as the job has tasks")


def allocated_hosts() -> list[str]:
    """The hosts of the Slurm allocation, where there is one and scontrol can name them."""
    nodes = os.environ.get("SLURM_JOB_NODELIST", "")
    return _output(["scontrol", "show", "hostnames", nodes]).split() if nodes else []


def ssh(hosts: Sequence[str], *, needed: bool) -> Row:
    """Whether the other hosts can be reached as horovodrun does it.

    Args:
        hosts: their names.
        needed: whether not reaching one fails; under Slurm, srun needs no ssh.
    """
    mine = {os.uname().nodename, os.uname().nodename.partition(".")[0], "localhost", "127.0.0.1"}
    others = [host for host in dict.fromkeys(hosts) if host not in mine]
    if shutil.which("ssh") is None:
        problems = ["no ssh on the PATH"] if others else []
    else:
        with ThreadPoolExecutor(16) as pool:
            problems = [problem for problem in pool.map(_ssh_problem, others) if problem]
    if problems:
        hint = "keys without a pass phrase, as ssh-copy-id spreads them" + ("" if needed else ", or srun")
        return Row("ssh", "; ".join(problems)[:200], "fail" if needed else "warn", hint)
    return Row("ssh", f"{len(others)} other host(s) reached" if others else "no other host")


def _ssh_problem(host: str) -> str:
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "ConnectTimeout=10"]
    try:
        done = subprocess.run(
            ["ssh", *options, "--", host, "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{host}: {type(error).__name__}"
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return "" if done.returncode == 0 else f"{host}: {last}"


def run_folder(folder: Path) -> Row:
    """Whether this process can write into a run folder and lock it; what this makes there is removed again."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    probe = folder / f".doctor-{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with probe.open("w") as first, probe.open("r+") as second:
            remark = take(first.fileno())
            # Within one process fcntl's locks keep nobody out.
            locks = bool(remark) or not can_lock(second.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Row("run folder", f"{folder}: {error.strerror}", "fail", "--run-dir names a folder that can be written")
    finally:
        remove(probe, made)
    found = f"{folder}, {free / _GIB:,.0f} GiB free"
    if not locks:
        return Row("run folder", found, "warn", "locks have no effect there: never train twice into one folder")
    if remark:
        return Row("run folder", f"{found}, {remark}", "warn", _NO_FLOCK)
    if free < _GIB:
        return Row("run folder", found, "warn", "checkpoints need space")
    return Row("run folder", found)


def can_lock(file: int) -> bool:
    """Whether an open file can be locked, that is, whether nobody else holds it."""
    try:
        take(file)
    except BlockingIOError:
        return False
    return True


def remove(probe: Path, made: Sequence[Path]) -> None:
    """Remove a file and the folders that were made for it."""
    try:
        probe.unlink(missing_ok=True)
        for path in made:
            path.rmdir()
    except OSError:
        pass  # it was never made, or something else is in it by now


def _output(command: Sequence[str]) -> str:
    """What a command prints; nothing where it is not there, fails or hangs."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
