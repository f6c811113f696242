"""Builds the commands that start processes: on which hosts, and with how many cores each."""

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
    """A way to start processes.

    Args:
        name: horovodrun or srun.
        controller: gloo or mpi; None: horovodrun's default.
        hosts: names and slots for horovodrun; empty: this host.
        nodes: number of nodes of the Slurm allocation.
    """

    name: Literal["horovodrun", "srun"]
    controller: str | None
    hosts: tuple[tuple[str, int], ...]
    nodes: int

    @property
    def elsewhere(self) -> bool:
        """True if processes may run on another host: salloc leaves its shell on the login node."""
        return self.name == "srun" or bool(self.hosts)

    def spread(self, count: int) -> list[int]:
        """Distribute processes over the hosts as evenly as the slots allow; returns the number for each host."""
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
        """Return the cores of each of `count` processes for srun; 0: each process divides its host's cores itself."""
        if self.name != "srun":
            return 0
        words = re.findall(r"(\d+)(?:\(x\d+\))?", os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
        return max(1, min(map(int, words)) // max(self.spread(count))) if words else 0

    def words(self, count: int, cores: int) -> list[str]:
        """Return the words to put before a command."""
        if self.name == "srun":
            mpi = os.environ.get("SRUN_MPI", "pmix")
            words = ["srun", f"--mpi={mpi}", "--kill-on-bad-exit=1", f"--nodes={len(self.spread(count))}"]
            # Since Slurm 22.05 srun ignores sbatch's --cpus-per-task; without its own it binds a process to one core.
            return [*words, f"--ntasks={count}", *([f"--cpus-per-task={cores}"] if cores else [])]
        if count == 1 and not self.hosts:
            return []
        local = Path(sys.executable).with_name("horovodrun")
        found = str(local) if local.exists() else shutil.which("horovodrun")
        if found is None:
            raise UserError(f"--ranks: {count} processes need horovodrun, which is not here; launch/setup.sh builds it")
        controller = [f"--{self.controller}"] if self.controller else []
        # horovodrun fills one host after another, so it is offered only the slots that it shall use.
        names = [name for name, _ in self.hosts]
        hosts = [f"{name}:{placed}" for name, placed in zip(names, self.spread(count), strict=False) if placed]
        return [found, *controller, "-np", str(count), *(["-H", ",".join(hosts)] if hosts else [])]


def choose_launcher(name: str, controller: str | None, hosts: Sequence[str]) -> Launcher:
    """Choose the launcher from --launcher, --controller and --hosts.

    Raises:
        UserError: the flags contradict each other, or there is no Slurm allocation.
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
