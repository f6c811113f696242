"""Builds the commands that start processes: on which hosts, and with how many cores each."""

import dataclasses
import os
import re
import shutil
from collections.abc import Sequence
from typing import Literal

from hvdgan.cli import launching
from hvdgan.cli.errors import UserError
from hvdgan.cli.launching import Starter


@dataclasses.dataclass(frozen=True)
class Launcher:
    """A way to start processes.

    Args:
        name: horovodrun, or mpirun, as the controller says; or srun.
        controller: gloo or mpi; None: mpi where it is there.
        hosts: names and slots, unless srun has them; empty: this host.
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

    def starter(self, count: int, cores: int) -> Starter:
        """Start a number of processes, each with `cores` cores under srun; 0: as Slurm has it."""
        if self.name == "srun":
            # Since Slurm 22.05 srun ignores sbatch's --cpus-per-task; without its own it binds a process to one core.
            return launching.srun(
                f"--nodes={len(self.spread(count))}",
                f"--ntasks={count}",
                *([f"--cpus-per-task={cores}"] if cores else []),
            )
        if count == 1 and not self.hosts:
            return Starter([], launching.environment())
        # A launcher fills one host after another, so it is offered only the slots that it shall use.
        spread = zip(self.hosts, self.spread(count), strict=False)
        slots = [(name, placed) for (name, _), placed in spread if placed]
        if self.controller == "mpi":
            return launching.mpirun(count, slots)
        return launching.horovodrun(count, slots) if self.controller == "gloo" else launching.over_any(count, slots)


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
    slots = launching.read_hosts(",".join(hosts), "--hosts") if hosts else []
    return Launcher(chosen, controller, tuple(slots), int(nodes) if nodes.isdigit() else 1)
