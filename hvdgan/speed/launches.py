"""Starting ranks, or as many independent copies of one rank, and collecting what they have measured."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from hvdgan.errors import RunError, UserError
from hvdgan.speed.worker import Spec

Kind = Literal["ranks", "copies"]


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is launched: so many ranks with so many images each, or as many copies that are one rank each."""

    kind: Kind
    count: int
    local_batch_size: int

    def __str__(self) -> str:
        what = "rank" if self.kind == "ranks" else "independent copy"
        plural = what if self.count == 1 else f"{what}s" if self.kind == "ranks" else "independent copies"
        return f"{self.count} {plural} of {self.local_batch_size} images"

    @property
    def global_batch_size(self) -> int:
        """Of the ranks together, or of each copy."""
        return self.local_batch_size * (self.count if self.kind == "ranks" else 1)


@dataclasses.dataclass(frozen=True)
class Launcher:
    """How processes are started, on which hosts.

    Args:
        name: horovodrun or srun.
        controller: gloo or mpi; None: what horovodrun prefers.
        hosts: as horovodrun's -H takes them; none: this host.
        nodes: of the Slurm allocation.
    """

    name: Literal["horovodrun", "srun"]
    controller: str | None
    hosts: tuple[str, ...]
    nodes: int

    @property
    def num_hosts(self) -> int:
        return self.nodes if self.name == "srun" else max(1, len(self.hosts))

    def words(self, count: int) -> list[str]:
        """The words before a command that start it so many times."""
        if self.name == "srun":
            mpi = os.environ.get("SRUN_MPI", "pmix")
            nodes = min(count, self.nodes)
            return ["srun", f"--mpi={mpi}", "--kill-on-bad-exit=1", f"--nodes={nodes}", f"--ntasks={count}"]
        if count == 1 and not self.hosts:
            return []
        beside = Path(sys.executable).with_name("horovodrun")
        found = str(beside) if beside.exists() else shutil.which("horovodrun")
        if found is None:
            raise UserError(f"--ranks: {count} processes need horovodrun, which is not here; launch/setup.sh builds it")
        controller = [f"--{self.controller}"] if self.controller else []
        return [found, *controller, "-np", str(count), *(["-H", ",".join(self.hosts)] if self.hosts else [])]


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
    return Launcher(chosen, controller, tuple(hosts), int(nodes) if nodes.isdigit() else 1)


@dataclasses.dataclass(frozen=True)
class Bench:
    """What all launches share.

    Args:
        launcher: starts the processes.
        arguments: of hvdgan.train.
        steps: to measure.
        cores: per process.
        timeout: seconds that a launch may take.
    """

    launcher: Launcher
    arguments: list[str]
    steps: int
    cores: int
    timeout: float

    def launch(self, variant: Variant, *, allreduce: bool = False) -> dict[str, Any]:
        """Start a variant, wait for its end, and return its figures.

        Args:
            variant: what to start.
            allreduce: whether to measure the all-reduce too.

        Raises:
            UserError: the processes call it a mistake of the user's.
            RunError: they fail, or take too long.
        """
        with self._folder() as folder:
            spec = Spec(
                arguments=self.arguments,
                global_batch_size=variant.global_batch_size,
                steps=self.steps,
                cores=self.cores,
                copies=variant.count if variant.kind == "copies" else 0,
                allreduce=allreduce,
                began=time.time(),
                folder=str(folder),
            )
            path = folder / "spec.json"
            path.write_text(json.dumps(dataclasses.asdict(spec)), encoding="utf-8")
            command = [*self.launcher.words(variant.count), sys.executable, "-m", "hvdgan.speed.worker", str(path)]
            _run(command, folder / "said.txt", variant, self.timeout)
            numbers = range(variant.count if variant.kind == "copies" else 1)
            try:
                results = [json.loads((folder / f"result-{number}.json").read_text()) for number in numbers]
            except OSError as error:
                raise RunError(f"{variant}: no figures in {error.filename}; do all hosts see that folder?") from error
        return results[0] if variant.kind == "ranks" else {"copies": results}

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        # Other hosts have another /tmp; the folder that the command is started in they share, or no training works.
        parent = Path.cwd() if self.launcher.num_hosts > 1 else None
        with tempfile.TemporaryDirectory(prefix=".hvdgan-bench-", dir=parent, ignore_cleanup_errors=True) as name:
            yield Path(name)


def _run(command: Sequence[str], log: Path, variant: Variant, timeout: float) -> None:
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RunError(f"{variant}: not done after {timeout:g} s; --timeout gives more") from None
        finally:
            _end(process)
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        complaint = next((line.partition("hvdgan: ")[2] for line in lines if "hvdgan: " in line), "Traceback")
        if complaint.startswith("Traceback"):
            complaint = "\n".join([f"exit code {code}; the end of what it said:", *lines[-40:]])
        # horovodrun makes 1 of any exit code of its processes; one rank, which comes first, starts without it.
        raise (UserError if code == UserError.exit_code else RunError)(f"{variant}: {complaint}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher and, through it, what it has started, also on other hosts."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
