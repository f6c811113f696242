"""What a run says of itself when it starts: who takes part, over what, where, and in which versions."""

import os
import platform

import keras
import tensorflow as tf

from hvdgan import __version__, devices, distributed
from hvdgan.distributed import Ranks
from hvdgan.launchers import allocated


def lines(ranks: Ranks) -> list[str]:
    """The lines for people; every rank calls it, since each tells where it is."""
    places = distributed.everyones_devices(ranks)
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
    over = distributed.controller()
    if on_gpu and distributed.horovod_build()["nccl"]:
        collectives = "NCCL"
    else:
        asked = os.environ.get("HOROVOD_CPU_OPERATIONS", over).lower()
        collectives = names.get(asked, asked)
    return f"controller {names[over]}, collectives {collectives}"


def _versions(ranks: Ranks) -> str:
    horovod = "" if ranks.size == 1 else f", Horovod {distributed.horovod_build()['version']}"
    return f"Python {platform.python_version()}, TensorFlow {tf.__version__}, Keras {keras.__version__}{horovod}"
