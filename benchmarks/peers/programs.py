"""Defines the programs to compare and the commands that start them.

A name is a program's, then -bf16 for mixed bfloat16, -digits for the small network, -x2 for two independent copies.
"""

import dataclasses
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from work import Work

from hvdgan.cli.launching import built_with

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LAUNCHER = [sys.executable, "-m", "hvdgan.launch", "-np", "2"]
TORCH = ROOT / ".venv-peers" / "bin" / "python"
MADE = ROOT / ".venv-peers" / ".hvdgan"
"""file that is empty if setup.sh was interrupted"""

Start = tuple[list[str], dict[str, str]]
"""A command, and its additional environment variables."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of program: its number of ranks, and its commands."""

    ranks: int
    start: Callable[[Work], list[Start]]
    needs: str = ""
    """torch or mpi"""


@dataclasses.dataclass(frozen=True)
class Program:
    """A program: one line of the table."""

    name: str
    kind: str
    precision: str
    digits: bool
    copies: int

    @property
    def ranks(self) -> int:
        """Number of processes that train, over all copies."""
        return KINDS[self.kind].ranks * self.copies


def script(name: str, python: str | Path = sys.executable) -> Callable[[Work], list[Start]]:
    """Start one process of a script of this folder."""
    return lambda work: [([str(python), str(HERE / name), *work.arguments()], {})]


def horovodrun(controller: str) -> list[str]:
    """Return the words that start two ranks."""
    return ["horovodrun", f"--{controller}", "-np", "2"]


def horovod(controller: str) -> Callable[[Work], list[Start]]:
    """Start two ranks of the plain Horovod script."""
    return lambda work: [([*horovodrun(controller), *script("horovod_raw.py")(work)[0][0]], {})]


def torchrun(work: Work) -> list[Start]:
    """Start two ranks of the PyTorch script with torchrun, a part of torch."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE / "torch_ddp.py")]
    return [([str(TORCH), *words, *work.arguments()], {})]


def workers(work: Work) -> list[Start]:
    """Start two processes that find each other through TF_CONFIG."""
    addresses = [f"localhost:{free_port()}" for _ in range(2)]
    tasks = [{"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}} for index in range(2)]
    return [(script("multi_worker.py")(work)[0][0], {"TF_CONFIG": json.dumps(task)}) for task in tasks]


def free_port() -> int:
    """Find a free port."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def trainer(launcher: list[str], ranks: int) -> Callable[[Work], list[Start]]:
    """Start hvdgan.train, with defaults for all features that the other programs do not have."""

    def start(work: Work) -> list[Start]:
        python = [] if launcher == LAUNCHER else [sys.executable, "-m", "hvdgan.train"]
        settings = {
            "recipe": "dcgan",
            "data": "synthetic" if work.channels == 3 else "digits",
            "image-size": work.image_size,
            "nf": work.nf,
            "latent-size": work.latent_size,
            "learning-rate": work.learning_rate,
            "beta-1": work.beta_1,
            "global-batch-size": work.batch_size * ranks,
            "precision": work.precision,
            "steps": work.warm_up + work.steps,
            # One record after the warm-up and one after the last step, between which the time is measured; no samples
            # and checkpoints before the last step.
            "log-every": work.warm_up,
            "sample-every": 0,
            "checkpoint-every": 0,
            "run-dir": work.out,
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        return [([*launcher, *python, *words], {})]

    return start


KINDS = {
    "keras": Kind(1, script("keras_loop.py")),
    "torch": Kind(1, script("torch_loop.py", TORCH), "torch"),
    "hvdgan": Kind(1, trainer([], 1)),
    "horovod-mpi": Kind(2, horovod("mpi"), "mpi"),
    "horovod-gloo": Kind(2, horovod("gloo")),
    "multiworker": Kind(2, workers),
    "mirrored": Kind(2, script("mirrored.py")),
    "ddp": Kind(2, torchrun, "torch"),
    "hvdgan-launch": Kind(2, trainer(LAUNCHER, 2)),
    "hvdgan-mpi": Kind(2, trainer(horovodrun("mpi"), 2), "mpi"),
    "hvdgan-gloo": Kind(2, trainer(horovodrun("gloo"), 2)),
}
PROGRAMS = {
    name: Program(name, kind, "mixed_bfloat16" if bf16 else "float32", bool(digits), 2 if twice else 1)
    for digits in ("", "-digits")
    for bf16 in ("", "-bf16")
    for kind in KINDS
    for twice in ("", "-x2")
    if not (twice and KINDS[kind].ranks > 1)
    for name in [f"{kind}{bf16}{digits}{twice}"]
}
# The programs of the goals, grouped by comparison; the others run only with --only.
DEFAULT = [
    *("keras", "torch", "hvdgan", "keras-x2", "torch-x2", "hvdgan-x2"),
    *("horovod-mpi", "horovod-gloo", "multiworker", "mirrored", "ddp", "hvdgan-launch", "hvdgan-mpi", "hvdgan-gloo"),
    *("keras-bf16", "torch-bf16", "hvdgan-bf16", "torch-bf16-x2", "hvdgan-bf16-x2"),
    *("ddp-bf16", "hvdgan-launch-bf16", "hvdgan-mpi-bf16", "hvdgan-gloo-bf16"),
    *("hvdgan-digits-x2", "hvdgan-launch-digits", "hvdgan-mpi-digits", "hvdgan-gloo-digits"),
]


def missing(program: Program) -> str:
    """Return the reason why a program cannot run here; empty if it can."""
    needs = KINDS[program.kind].needs
    if needs == "torch" and not (TORCH.exists() and MADE.is_file() and MADE.stat().st_size):
        return f"there is no {TORCH.relative_to(ROOT)} (make bench makes it)"
    if needs == "mpi":
        return missing_mpi()
    return ""


def missing_mpi() -> str:
    """Return the reason why horovodrun --mpi cannot start programs here; empty if it can."""
    if "mpi" not in built_with():
        return "Horovod was built without MPI"
    return "" if shutil.which("mpirun", path=environment()["PATH"]) else "there is no mpirun on the PATH"


def environment(**more: str) -> dict[str, str]:
    """Return the environment of every program: this process's, without variables of launchers and libraries.

    oneDNN's kernels are on for all, as hvdgan turns them on, so that programs are compared and not kernels.
    """
    foreign = ("HOROVOD_", "OMPI_MCA", "OMPI_COMM", "PMI", "SLURM_", "TF_", "OMP_", "TORCH", "XLA_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    own = {"PATH": path, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "1"}
    return {**kept, **own, **more}
