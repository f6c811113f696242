"""The settings of the script, and the words that start a number of ranks."""

import dataclasses
import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpu.processes import Done, run
from hvdgan.diagnostics.speed.starter import Launcher

ROOT = Path(__file__).resolve().parents[2]
GROWING = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
"""variables for pytest: a test that computes in pytest's own process would otherwise take the memory of all GPUs, and
leave none to the processes that it starts"""


class TimeIsUp(Exception):
    """The time budget was spent before a command began; the message is the name of its log."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings that all parts share.

    Args:
        out: folder of the results.
        cpu: True to do everything on the CPU.
        quick: True for few steps.
        ranks: numbers of ranks to measure, as numbers_of_ranks() lists them; the first is 1, the last all.
        here: largest number of ranks on one host.
        nodes: number of hosts.
        gloo: True if horovodrun cannot drive the MPI that is here.
        recipes: names of the recipes to train.
        precisions: names of the precisions.
        timeout: time limit of each command in seconds.
        time_budget: seconds from the beginning after which no command is started; None: no limit.
        begin: time.monotonic() at the beginning.
    """

    out: Path
    cpu: bool
    quick: bool
    ranks: tuple[int, ...]
    here: int
    nodes: int
    gloo: bool
    recipes: tuple[str, ...]
    precisions: tuple[str, ...]
    timeout: float
    time_budget: float | None = None
    begin: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """The time since the beginning."""
        return time.monotonic() - self.begin

    @property
    def most(self) -> int:
        """The largest number of ranks."""
        return self.ranks[-1]

    def batch_of_all(self, least: int) -> int:
        """Return the smallest global batch that each number of ranks divides, and that has at least `least` images.

        Args:
            least: number of images.
        """
        unit = math.lcm(*self.ranks)
        return -(-least // unit) * unit

    @property
    def small(self) -> bool:
        """Whether networks, images and batches are small."""
        return self.cpu or self.quick

    @property
    def device(self) -> str:
        """The noun for what a rank computes on."""
        return "core" if self.cpu else "GPU"

    def launch(self, name: str, module: str, words: Sequence[str], ranks: int = 1, **more: str) -> Done:
        """Run a module on a number of ranks to its end.

        Args:
            name: name of the log, which may contain a folder.
            module: module to run.
            words: its command line.
            ranks: number of ranks.
            more: additional environment variables.
        """
        return self.run(name, [*launcher(ranks, self.nodes, module), *words], **more)

    def run(self, name: str, command: Sequence[str], **more: str) -> Done:
        """Run a command to its end, in the folder of the results.

        Args:
            name: name of the log, which may contain a folder.
            command: words of the command.
            more: additional environment variables.

        Raises:
            TimeIsUp: the time budget is spent.
        """
        if self.time_budget is not None and self.seconds > self.time_budget:
            raise TimeIsUp(name)
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.cpu else {}
        return run(command, self.out / "logs" / f"{name}.txt", self.timeout, self.out, {**hidden, **more})


def launcher(ranks: int, nodes: int, module: str) -> list[str]:
    """Return the words that start a module on a number of ranks, by hvdgan launch or as the Slurm jobs do.

    Args:
        ranks: number of ranks.
        nodes: number of hosts over which they are spread.
        module: module to run.
    """
    if ranks == 1 and not in_slurm():
        return [sys.executable, "-m", module]
    if not in_slurm() or (ranks > 1 and os.environ.get("LAUNCHER", "srun") != "srun"):
        way = [f"--{os.environ['LAUNCHER']}"] if in_slurm() else []
        return [sys.executable, "-m", "hvdgan.launch", *way, "-np", str(ranks), "-m", module, "--"]
    by_srun = Launcher("srun", None, (), nodes)
    return [*by_srun.starter(ranks, by_srun.cores(ranks)).words, sys.executable, "-m", module]


def in_slurm() -> bool:
    """Whether this process belongs to a Slurm allocation in which srun can start ranks."""
    return "SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None


def hosts_of_allocation() -> int:
    """Return the number of hosts: those of the Slurm allocation, or 1."""
    words = os.environ.get("SLURM_JOB_NUM_NODES", "1")
    return int(words) if in_slurm() and words.isdecimal() else 1


def numbers_of_ranks(here: int, nodes: int) -> tuple[int, ...]:
    """Return the numbers of ranks to measure: 1, 2, 4 and so on, all GPUs of a host, and all of all hosts.

    Args:
        here: number of GPUs of a host.
        nodes: number of hosts.
    """
    most = here * nodes
    powers = {2**power for power in range(most.bit_length()) if 2**power <= most}
    return tuple(sorted(powers | {here, most}))


def known_recipes() -> list[str]:
    """List the names of hvdgan's recipes, without loading TensorFlow."""
    return sorted(path.stem for path in (ROOT / "hvdgan" / "recipes").glob("[a-z]*.py"))
