"""What a run says of itself when it starts: who takes part, over what, where, and in which versions."""

import os
import platform
from collections.abc import Callable

import keras
import tensorflow as tf

from hvdgan import __version__
from hvdgan.cli.launcher import allocated
from hvdgan.distributed import backend, devices
from hvdgan.distributed.ranks import Ranks
from hvdgan.training.resuming.changes import way_on
from hvdgan.training.resuming.claim import Found
from hvdgan.training.run import Run, describe


def announce(run: Run, found: Found, say: Callable[[str], None]) -> None:
    """Log what is about to happen; every rank calls it.

    Args:
        run: built and restored.
        found: where it resumes.
        say: logs a line.
    """
    if found.recovered:
        say(f"{run.ranks.size} rank(s) go on at step {found.step} of {run.last_step}, from the last commit")
        return
    for line in lines(run.ranks):
        say(line)
    say(describe(run))
    say(f"run folder {run.run_dir}")
    # Before --eval-images there was no choice: evaluations looked at all held-out images.
    before = found.progress.get("evaluated", len(run.held_out)) if run.held_out and found.progress else None
    changed = run.evaluator.remark(before) if run.evaluator else None
    for remark in [*found.remarks, *([changed] if changed else [])]:
        say(remark)
    if found.step >= run.last_step:
        say(f"nothing to do: step {found.step} of {run.last_step} is reached; {way_on(run)}")
    elif found.step:
        say(f"going on at step {found.step} of {run.last_step}")


def lines(ranks: Ranks) -> list[str]:
    """The lines for people; every rank calls it, since each tells where it is."""
    places = devices.everyones_devices(ranks)
    hosts = len({place.host for place in places})
    said = [
        f"hvdgan {__version__}: {ranks.size} rank(s) on {hosts} host(s), launcher {ranks.launcher}, "
        f"{_talk(ranks, on_gpu=places[0].gpu is not None)}; {_versions(ranks)}",
        *devices.by_host(places),
    ]
    tasks = allocated()
    if ranks.launcher == "none" and tasks is not None and tasks > 1:
        said.append(
            f"one process in a Slurm allocation of {tasks} tasks; srun, or launch/multi_node.sh, starts them all"
        )
    return said


def _talk(ranks: Ranks, *, on_gpu: bool) -> str:
    if ranks.size == 1:
        return "no collectives"
    names = {"mpi": "MPI", "gloo": "Gloo", "ccl": "oneCCL"}
    over = backend.controller()
    if on_gpu and backend.build()["nccl"]:
        collectives = "NCCL"
    else:
        asked = os.environ.get("HOROVOD_CPU_OPERATIONS", over).lower()
        collectives = names.get(asked, asked)
    return f"controller {names[over]}, collectives {collectives}"


def _versions(ranks: Ranks) -> str:
    horovod = "" if ranks.size == 1 else f", Horovod {backend.build()['version']}"
    return f"Python {platform.python_version()}, TensorFlow {tf.__version__}, Keras {keras.__version__}{horovod}"
