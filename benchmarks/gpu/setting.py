"""The settings of the script, the result of a check, and the words that start a number of ranks."""

import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import processes

from hvdgan.launching import starters
from hvdgan.launching.launched import tasks_of_nodes

ROOT = Path(__file__).resolve().parents[2]


class TimeIsUp(Exception):
    """The time budget was spent before a command began; the message is the name of its log."""


class Check(NamedTuple):
    """The result of one check.

    Args:
        name: name of the check.
        verdict: passed, failed, or not run.
        found: result in words.
        table: lines of a table that belongs to it.
        errors: lines that say why it failed.
        command: command line.
        seconds: duration.
    """

    name: str
    verdict: Literal["passed", "failed", "not run"]
    found: str = ""
    table: Sequence[str] = ()
    errors: Sequence[str] = ()
    command: str = ""
    seconds: float = 0.0


def judged(name: str, done: processes.Done, found: str = "", complaint: str = "", table: Sequence[str] = ()) -> Check:
    """Return the check of a command: it fails if the command failed, or if there is a complaint."""
    errors = [*done.errors, *([complaint] if complaint else [])]
    verdict: Literal["passed", "failed"] = "failed" if errors else "passed"
    return Check(name, verdict, found, table, errors, done.words, done.seconds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings that all parts share.

    Args:
        out: folder of the results.
        cpu: True to do everything on the CPU.
        quick: True for few steps.
        here: number of ranks on one host.
        nodes: number of hosts.
        recipes: names of the recipes to train.
        precisions: names of the precisions.
        timeout: time limit of each command in seconds.
        deadline: time.monotonic() after which no command is started.
    """

    out: Path
    cpu: bool
    quick: bool
    here: int
    nodes: int
    recipes: Sequence[str]
    precisions: Sequence[str]
    timeout: float
    deadline: float

    @property
    def most(self) -> int:
        """Number of ranks on all hosts."""
        return self.here * self.nodes

    @property
    def small(self) -> bool:
        """Whether networks, images and batches are small."""
        return self.cpu or self.quick

    def launch(self, name: str, module: str, words: Sequence[str], ranks: int = 1, **more: str) -> processes.Done:
        """Run a module with its command line on a number of ranks to its end."""
        return self.run(name, [*launcher(ranks, self.nodes, module), *words], **more)

    def run(self, name: str, command: Sequence[str | Path], limits: int = 1, **more: str) -> processes.Done:
        """Run a command, which may take some time limits, in the folder of the results; raises TimeIsUp."""
        if time.monotonic() > self.deadline:
            raise TimeIsUp(name)
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.cpu else {}
        # A test that computes in pytest's own process would otherwise take all memory of the GPUs.
        env = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", **hidden, **more}
        seconds = min(limits * self.timeout, max(self.deadline - time.monotonic(), self.timeout))
        return processes.run(command, self.out / "logs" / f"{name}.txt", seconds, self.out, env)


def launcher(ranks: int, nodes: int, module: str) -> list[str]:
    """Return the words that start a module on ranks on some hosts, by hvdgan launch or as the Slurm jobs do."""
    if ranks == 1 and not in_slurm():
        return [sys.executable, "-m", module]
    if not in_slurm() or (ranks > 1 and os.environ.get("LAUNCHER", "srun") != "srun"):
        way = [f"--{os.environ['LAUNCHER']}"] if in_slurm() else []
        return [sys.executable, "-m", "hvdgan.launch", *way, "-np", str(ranks), "-m", module, "--"]
    used = min(ranks, nodes)
    # Since Slurm 22.05 srun ignores sbatch's --cpus-per-task; without its own it binds a process to one core.
    cores = min(tasks_of_nodes(os.environ.get("SLURM_JOB_CPUS_PER_NODE", "1")))
    own = f"--cpus-per-task={max(1, cores // -(-ranks // used))}"
    by_srun = starters.srun(f"--nodes={used}", f"--ntasks={ranks}", own)
    return [*by_srun.words, sys.executable, "-m", module]


def in_slurm() -> bool:
    """Whether this process belongs to a Slurm allocation in which srun can start ranks."""
    return "SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None
