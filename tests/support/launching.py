"""Starting real processes from tests: one, or several under a launcher, with a bound on their time."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

import forking
from hvdgan.launching.starters import built_with

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SECONDS = 480
Done = subprocess.CompletedProcess[str]


HAS_MPI = shutil.which("mpirun") is not None and "mpi" in built_with()
CONTROLLERS = ["gloo", "mpi"] if HAS_MPI else ["gloo"]
EACH_CONTROLLER = [pytest.param("gloo", marks=pytest.mark.long), "mpi"] if HAS_MPI else ["gloo"]
"""for tests that take long: CI runs them over Gloo where there is no MPI"""


def environment(**more: str) -> dict[str, str]:
    """This process's environment without a launcher's words in it; the package and tests/support on the path."""
    foreign = ("HOROVOD_", "OMPI_", "PMI", "PMIX_", "SLURM_", "TF_NUM_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {
        **kept,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")]),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **more,
    }


@functools.cache
def _forks() -> dict[str, str]:
    """The variables with which a command is forked; the first commands start as usual, until the servers are ready."""
    path = os.pathsep.join([environment()["PYTHONPATH"], str(ROOT / "tests" / "support" / "forked")])
    return {"PYTHONPATH": path, forking.ADDRESS: forking.start_servers(environment(PYTHONPATH=path))}


def run(
    command: Sequence[str | Path], cwd: Path, *, seconds: float = SECONDS, forked: bool = False, **env: str
) -> Done:
    """Run a command to its end; at the bound, end it with all its children and fail.

    Args:
        forked: fork hvdgan's commands and horovodrun from processes that have imported TensorFlow (see forking.py).
        env: variables to add to environment(); one that Python reads at the start makes `forked` useless.
    """
    if forked:
        env = {**_forks(), **env}
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        raise AssertionError(f"{command} did not end in {seconds} s\n{stdout}\n{stderr}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@contextlib.contextmanager
def started(command: Sequence[str | Path], cwd: Path, **env: str) -> Iterator[psutil.Popen]:
    """Start a command whose output goes to cwd/said; at the end it and all that it has started are killed."""
    with (cwd / "said").open("w") as said:
        settings = {"env": environment(**env), "stdin": subprocess.DEVNULL, "start_new_session": True}
        process = psutil.Popen([str(word) for word in command], cwd=cwd, stdout=said, stderr=said, **settings)
    try:
        yield process
    finally:
        for each in [*(process.children(recursive=True) if process.is_running() else ()), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


def wait_until(is_so: Callable[[], Any], seconds: float, what: Callable[[], Any], every: float = 0.1) -> None:
    """Poll until something is so; after a time fail with what() says."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, what()
        time.sleep(every)


def launcher(ranks: int, controller: str = "gloo") -> list[str]:
    """The words that start a command on a number of ranks of this machine."""
    return [] if ranks == 1 else ["horovodrun", f"--{controller}", "-np", str(ranks)]


def train(cwd: Path, *arguments: str, ranks: int = 1, controller: str = "gloo", **env: str) -> Done:
    """Run hvdgan.train, forked, on a number of ranks and require that it succeeds; with no report unless asked for."""
    words = [*arguments] if "--report" in arguments else [*arguments, "--report", "never"]
    command = [*launcher(ranks, controller), sys.executable, "-m", "hvdgan.train", *words]
    done = run(command, cwd, forked=True, **env)
    assert done.returncode == 0, f"{done.args}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def copy_sources(folder: Path) -> None:
    """Copy what pip and launch/setup.sh need of this checkout."""
    for name in ("hvdgan", "launch"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
