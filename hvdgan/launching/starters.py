"""How ranks are started: hosts and their slots, the words of horovodrun, mpirun and srun, and the ranks' environment.

The standard library is enough for it, so that a job starts ranks in a container by a Python that has no more.
"""

import dataclasses
import functools
import importlib.util
import itertools
import os
import re
import sys
from pathlib import Path

from hvdgan.errors import UserError
from hvdgan.launching.launched import tasks_of_nodes
from hvdgan.launching.programs import by_nvidia_smi, output_of

Slots = list[tuple[str, int]]
"""names of hosts, each with the number of its ranks"""
# The reason for each follows in its line. One that is set already stays, also if it is empty.
_DEFAULTS = {
    "TF_CPP_MIN_LOG_LEVEL": "2",  # horovodrun loads TensorFlow, which would print its messages; 0 shows them
    "PYTHONUNBUFFERED": "1",  # a rank's output reaches the job's log at once, and not when a buffer is full
    "HOROVOD_START_TIMEOUT": "300",  # horovodrun's 30 s are short if Python lies on a shared file system
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "300",  # so are those in which the ranks must have found each other
    "NCCL_DEBUG": "WARN",  # one line about a failure, without which its cause is missing
    "OMPI_MCA_btl": "^openib",  # Open MPI's InfiniBand before UCX: it warns on every rank with a card
}
# Variables that ranks on other hosts get. Nothing else is shown to others by ssh's command line.
_PASSED = (
    r"PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX|TMPDIR|"
    r"(PYTHON|HOROVOD_|HVDGAN_|NCCL_|TF_|CUDA_|XLA_|KERAS_|HDF5_|OMP_|UCX_|FI_|MPIR_CVAR_).*"
)
# What horovodrun and ssh themselves need.
_LOCAL = r"HOME|USER|LOGNAME|SHELL|SSH_AUTH_SOCK|LANG|LC_.*|OMPI_.*|SLURM_.*"
_LAST_SECONDS = 600
"""time that srun gives ranks to end after the first has ended; rank 0 writes the page and the last checkpoint"""
_MPI_SIGNS = {
    "Open MPI": "Open MPI|OpenRTE|PRRTE",
    "Spectrum MPI": "IBM Spectrum MPI",
    "MPICH": "MPICH|HYDRA",
    "Intel MPI": r"Intel\(R\) MPI",
}
_UP = "alloc|mix|idle|comp|drng|drain|resv|maint|plnd|boot"


@dataclasses.dataclass(frozen=True)
class Starter:
    """A way to start ranks: words before their command, the launcher's environment, the text after each line's tag."""

    words: list[str]
    environment: dict[str, str]
    after_tag: str = ""


def read_hosts(text: str, where: str, slots: int = 1) -> Slots:
    """Read HOST:SLOTS,HOST:SLOTS of the flag `where`; a host without :SLOTS has `slots` ranks."""
    found = []
    for word in filter(None, re.split(r"[,\s]+", text)):
        match = re.fullmatch(r"(\w[\w.-]*)(?::([1-9]\d{0,5}))?", word, re.ASCII)
        if match is None:
            raise UserError(f"{where}: {word} is not HOST or HOST:SLOTS")
        found.append((match[1], int(match[2] or slots)))
    if not found:
        raise UserError(f"{where}: names no host")
    return found


def hosts_of_file(path: str, slots: int = 1) -> Slots:
    """Read a file of hosts, one per line: "host slots=4", "host:4" or "host"; # begins a comment."""
    try:
        text = re.sub("#.*", "", Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UserError(f"--hostfile {path}: cannot be read: {error}") from error
    return read_hosts(re.sub(r"[ \t]+slots[ \t]*=[ \t]*", ":", text), "--hostfile", slots)


def allocated_names() -> list[str]:
    """The names of the hosts of this Slurm allocation; empty if there is none, or scontrol cannot name them."""
    nodes = os.environ.get("SLURM_JOB_NODELIST", "")
    return output_of(["scontrol", "show", "hostnames", nodes]).split() if nodes else []


def hosts_of_allocation(*, up: bool = False) -> Slots:
    """List the hosts of this Slurm allocation; `up`: those alone that Slurm does not report as down."""
    nodes, names = os.environ["SLURM_JOB_NODELIST"], allocated_names()
    if not names:
        raise UserError(f"SLURM_JOB_NODELIST={nodes}: scontrol does not name these hosts; name them with -H")
    tasks = [*tasks_of_nodes(os.environ.get("SLURM_TASKS_PER_NODE", "")), *[1] * len(names)]
    found = list(zip(names, tasks, strict=False))
    if up:
        states = output_of(["sinfo", "--noheader", "--Node", "--nodes", nodes, "--format", "%N %t"])
        if not states:
            raise UserError("sinfo does not answer")
        # It marks the state of a node that does not answer with a star.
        found = [(name, n) for name, n in found if re.search(rf"^{re.escape(name)} ({_UP})[^*\n]*$", states, re.M)]
    return found


def joined(slots: Slots) -> str:
    """Write HOST:SLOTS,HOST:SLOTS."""
    return ",".join(f"{name}:{count}" for name, count in slots)


def count_gpus() -> int:
    """Count the GPUs that a process started here would see. CUDA ends its list at the first name of no GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(by_nvidia_smi("name"))
    names = map(str.strip, visible.split(","))
    return len([*itertools.takewhile(lambda name: name not in ("", "-1", "NoDevFiles"), names)])


@functools.cache
def built_with() -> frozenset[str]:
    """What the Horovod of this Python was built with, of gloo and mpi, by its library: to import it takes seconds."""
    found = importlib.util.find_spec("horovod")
    if found is None or found.origin is None:
        raise UserError("several ranks need Horovod, which is not installed for this Python; launch/setup.sh builds it")
    libraries = [path.read_bytes() for path in Path(found.origin).parent.glob("tensorflow/mpi_lib*.so")]
    names = {"gloo": rb"N4gloo", "mpi": rb"libmpi\w*\.so"}
    return frozenset(name for name, sign in names.items() if any(re.search(sign, each) for each in libraries))


def mpi_kind(text: str) -> tuple[str, str]:
    """The kind and the version of an MPI, by what `mpirun --version` prints; empty ones for an unknown MPI."""
    version = re.search(r"\d+(\.\d+)+", text)
    kind = next((kind for kind, sign in _MPI_SIGNS.items() if re.search(sign, text)), "")
    return kind, version[0] if version else ""


def environment(**defaults: str) -> dict[str, str]:
    """Return this process's environment with what ranks need and it lacks."""
    # Since Slurm 22.05 srun does not inherit --cpus-per-task from sbatch: every rank would be bound to one core.
    if cores := os.environ.get("SLURM_CPUS_PER_TASK"):
        defaults = {"SRUN_CPUS_PER_TASK": cores, **defaults}
    return {**_DEFAULTS, **defaults, **os.environ}


def horovodrun(np: int, slots: Slots, *options: str, **defaults: str) -> Starter:
    """Start ranks by horovodrun over Gloo; without slots on this machine.

    `defaults` are environment variables, unless these are set already. Of the environment other hosts get nothing but
    what ranks need: ssh's command line shows it to others.
    """
    if "gloo" not in built_with():
        raise UserError("--gloo: this Horovod was built without Gloo; take --mpi, or run make setup, which builds it")
    # No cache: a host that answered half an hour ago may be gone now.
    where = ["-H", joined(slots), "--disable-cache"] if slots else []
    words = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(np), *where, *options]
    variables = environment(**defaults)
    if slots or options:
        kept = re.compile(f"{_PASSED}|{_LOCAL}")
        variables = {name: value for name, value in variables.items() if kept.fullmatch(name)}
    return Starter(words, variables)


def mpirun(np: int, slots: Slots) -> Starter:
    """Start ranks by the mpirun of Open MPI 4 or 5 or of MPICH, each with its own flags; MPIRUN names another mpirun.

    No binding: mpirun would bind each of one or two ranks to a single core. The trainer shares a host's cores itself.
    """
    if "mpi" not in built_with():
        raise UserError("--mpi: this Horovod was built without MPI; take --gloo, or run make setup where mpicc is")
    program = _mpirun()
    said = output_of([program, "--version"])
    kind, version = mpi_kind(said)
    # By default Open MPI has one slot per core, and refuses more ranks. Where ranks use all cores, polling costs time.
    where, polls = joined(slots or [("localhost", np)]), not count_gpus()
    if (kind, version[:2]) in (("Open MPI", "4."), ("Open MPI", "5.")):
        variables = environment(**({"OMPI_MCA_mpi_yield_when_idle": "1"} if polls else {}))
        passed = [word for name in _passed(variables) for word in ("-x", name)]
        tags = ["--tag-output"] if version[0] == "4" else ["--output", "tag"]
        root = [] if os.geteuid() else ["--allow-run-as-root"]  # as horovodrun does
        options = ["--map-by", "slot", "--bind-to", "none", *root, *passed, *tags]
        return Starter([program, "-np", str(np), "-H", where, *options], variables, "" if version[0] == "4" else " ")
    if kind == "MPICH":
        variables = environment(**({"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"} if polls else {}))
        options = ["-bind-to", "none", "-genvlist", ",".join(_passed(variables)), "-prepend-pattern", "[%r]<stdout>:"]
        return Starter([program, "-n", str(np), "-hosts", where, *options], variables)
    named = f"{kind} {version}" if kind else said.partition("\n")[0]
    problem = f"is {named}; expected Open MPI 4 or 5, or MPICH" if named else "is missing or does not run"
    raise UserError(f"--mpi: {program} {problem}; --gloo needs no MPI")


def _mpirun() -> str:
    return os.environ.get("MPIRUN", "mpirun")


def _passed(variables: dict[str, str]) -> list[str]:
    return sorted(name for name in variables if re.fullmatch(_PASSED, name))


def srun(*options: str) -> Starter:
    """Start ranks as tasks of this Slurm job; SRUN_MPI names the PMI of the MPI that Horovod was built with."""
    mpi = os.environ.get("SRUN_MPI", "pmix")
    # A rank that stands still after the last step, when no rank watches the others any more, is ended.
    ends = ["--kill-on-bad-exit=1", f"--wait={_LAST_SECONDS}"]
    return Starter(["srun", f"--mpi={mpi}", *ends, *options], environment())


def over_any(np: int, slots: Slots, *options: str) -> Starter:
    """Start ranks over MPI if Horovod and an mpirun are made for it, otherwise by horovodrun with these options."""
    if (
        "mpi" in built_with()
        and not options
        and mpi_kind(output_of([_mpirun(), "--version"]))[0] in ("Open MPI", "MPICH")
    ):
        return mpirun(np, slots)
    return horovodrun(np, slots, *options)
