"""Checks how and where the processes were started: launcher, Slurm allocation, ssh between hosts, cores."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hvdgan.diagnostics.table import Row
from hvdgan.launching.hosts import name_without_address
from hvdgan.launching.launched import launched
from hvdgan.launching.programs import SECONDS

_RENDEZVOUS = {
    "Gloo": "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "PMIx": "PMIX_RANK",
    "PMI": "PMI_RANK",
    "Open MPI": "OMPI_COMM_WORLD_RANK",
}
"""ways in which the processes find each other, and the environment variable that shows each"""


def launcher() -> Row:
    """Check that the processes which a launcher has started can find each other."""
    name, size, _ = launched()
    if name == "none":
        return Row("launcher", "none: one process", hint="hvdgan launch -np N doctor, or srun before the same command")
    ways = [way for way, variable in _RENDEZVOUS.items() if variable in os.environ]
    found = f"{name}, {size} process(es), {' and '.join(ways) or 'no PMI'}"
    if name == "srun" and size > 1 and not ways:
        return Row("launcher", found, "fail", "every task would be rank 0 of 1: srun --mpi=pmix")
    return Row("launcher", found)


def host_name() -> Row:
    """Check that the name of this host has an address, which Gloo needs for several ranks."""
    if name := name_without_address():
        return Row("host name", name, "warn", "several ranks over Gloo need its address and its name in /etc/hosts")
    return Row("host name", f"{os.uname().nodename} has an address")


def slurm() -> Row | None:
    """Check that there is one process for each task of the Slurm allocation; None outside of an allocation."""
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
    return Row("Slurm", found, "fail", f"{name} started {size} process(es): start one for each of the {tasks} task(s)")


def ssh(hosts: Sequence[str], *, needed: bool) -> Row:
    """Check that other hosts can be reached by ssh without a password, as horovodrun needs it, and srun does not."""
    mine = {os.uname().nodename, os.uname().nodename.partition(".")[0], "localhost", "127.0.0.1"}
    others = [host for host in dict.fromkeys(hosts) if host not in mine]
    if shutil.which("ssh") is None:
        problems = ["no ssh on the PATH"] if others else []
    else:
        with ThreadPoolExecutor(16) as pool:
            problems = [problem for problem in pool.map(_ssh_problem, others) if problem]
    if problems:
        hint = "install keys without a passphrase (ssh-copy-id)" + ("" if needed else ", or use srun")
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
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{host}: {type(error).__name__}"
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return "" if done.returncode == 0 else f"{host}: {last}"


def cores(everyones: Sequence[Mapping[str, Any]]) -> Row:
    """Check that each rank has a core for itself; ranks that are not bound share their host's cores."""
    found = []
    short = ""
    for host in dict.fromkeys(each["host"] for each in everyones):
        ranks = [each["cores"] for each in everyones if each["host"] == host]
        union = {core for some in ranks for core in some}
        if len(union) < len(ranks):
            short = short or f"{len(ranks)} ranks on {len(union)} core(s) of {host}: start fewer, or bind them apart"
        found.append(f"{len(ranks)} rank(s) on {len(union)} core(s)")
    counts = {text: found.count(text) for text in found}
    text = ", ".join(text if times == 1 else f"{times} hosts with {text}" for text, times in counts.items())
    return Row("cores", text, "warn" if short else "ok", short)
