"""How the processes of a launch are started, on which hosts and with how many cores each."""

import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from hvdgan.cli.errors import UserError


@dataclasses.dataclass(frozen=True)
class Launcher:
    """How processes are started, and where.

    Args:
        name: horovodrun or srun.
        controller: gloo or mpi; None: what horovodrun prefers.
        hosts: names and slots for horovodrun; none: this host.
        nodes: of the Slurm allocation.
    """

    name: Literal["horovodrun", "srun"]
    controller: str | None
    hosts: tuple[tuple[str, int], ...]
    nodes: int

    @property
    def elsewhere(self) -> bool:
        """Whether processes may run on another host than this one: salloc leaves its shell on the login node."""
        return self.name == "srun" or bool(self.hosts)

    def spread(self, count: int) -> list[int]:
        """How many of so many processes each host has: as evenly as the slots allow.

        Raises:
            UserError: there are not as many slots.
        """
        if self.name == "srun" or not self.hosts:
            hosts = min(count, self.nodes) if self.name == "srun" else 1
            return [count // hosts + (host < count % hosts) for host in range(hosts)]
        slots = [each for _, each in self.hosts]
        if count > sum(slots):
            raise UserError(f"--hosts: {sum(slots)} slots for {count} processes; give more, or fewer --ranks")
        placed = [0] * len(slots)
        for _ in range(count):
            placed[min((taken, host) for host, taken in enumerate(placed) if taken < slots[host])[1]] += 1
        return placed

    def cores(self, count: int) -> int:
        """The cores of each of so many processes, where Slurm has to be told; 0: each counts those of its host."""
        if self.name != "srun":
            return 0
        words = re.findall(r"(\d+)(?:\(x\d+\))?", os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
        return max(1, min(map(int, words)) // max(self.spread(count))) if words else 0

    def words(self, count: int, cores: int) -> list[str]:
        """The words before a command that start it so many times, with so many cores each (0: not said)."""
        if self.name == "srun":
            mpi = os.environ.get("SRUN_MPI", "pmix")
            words = ["srun", f"--mpi={mpi}", "--kill-on-bad-exit=1", f"--nodes={len(self.spread(count))}"]
            # Since Slurm 22.05 srun takes this from no variable of sbatch, and binds each process to a single core.
            return [*words, f"--ntasks={count}", *([f"--cpus-per-task={cores}"] if cores else [])]
        if count == 1 and not self.hosts:
            return []
        beside = Path(sys.executable).with_name("horovodrun")
        found = str(beside) if beside.exists() else shutil.which("horovodrun")
        if found is None:
            raise UserError(f"--ranks: {count} processes need horovodrun, which is not here; launch/setup.sh builds it")
        controller = [f"--{self.controller}"] if self.controller else []
        # It fills one host after another: what is not to be used must not be offered.
        names = [name for name, _ in self.hosts]
        hosts = [f"{name}:{placed}" for name, placed in zip(names, self.spread(count), strict=False) if placed]
        return [found, *controller, "-np", str(count), *(["-H", ",".join(hosts)] if hosts else [])]


def choose_launcher(name: str, controller: str | None, hosts: Sequence[str]) -> Launcher:
    """What --launcher, --controller and --hosts come to here.

    Raises:
        UserError: they do not go together, or there is no allocation.
    """
    allocated = "SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None
    if name == "srun" and not allocated:
        raise UserError("--launcher srun: there is no Slurm allocation here; salloc or sbatch make one")
    if name == "srun" and (hosts or controller):
        raise UserError(
            "--launcher srun: takes the hosts of the allocation and MPI; leave out --hosts and --controller"
        )
    chosen: Literal["horovodrun", "srun"] = "horovodrun"
    if name == "srun" or (name == "auto" and allocated and not hosts and not controller):
        chosen = "srun"
    nodes = os.environ.get("SLURM_JOB_NUM_NODES", "1")
    return Launcher(chosen, controller, tuple(map(_slots, hosts)), int(nodes) if nodes.isdigit() else 1)


def _slots(host: str) -> tuple[str, int]:
    name, _, slots = host.rpartition(":")
    if not re.fullmatch(r"[\w.-]+", name) or not slots.isdecimal() or int(slots) == 0:
        raise UserError(f"--hosts {host}: expected HOST:SLOTS with commas between, such as node1:4,node2:4")
    return name, int(slots)
