"""Horovod: the only module that imports it, on first use, after a check that it was built for this TensorFlow."""

import contextlib
import functools
import platform
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan import __version__
from hvdgan.errors import LostPeer, RunError, UserError
from hvdgan.launching.launched import launched


@functools.cache
def horovod() -> Any:
    """The module horovod.tensorflow."""
    try:
        # Not public; tests/commands/test_train.py starts a Horovod that was built for another TensorFlow.
        from horovod.common.exceptions import HorovodVersionMismatchError
        from horovod.common.util import check_installed_version

        # Check before the import: a library built for another TensorFlow fails with a missing symbol, or loads and
        # computes nonsense.
        check_installed_version("tensorflow", tf.__version__, exception=ImportError())
        import horovod.tensorflow as hvd
    except (ImportError, tf.errors.OpError) as error:  # OpError: a library such as MPI's is not found
        if error.__class__.__name__ == "HorovodVersionMismatchError":
            assert isinstance(error, HorovodVersionMismatchError)
            raise UserError(
                f"Horovod was built for TensorFlow {error.installed_version}, and TensorFlow {tf.__version__} is "
                "installed; build Horovod again (launch/setup.sh)"
            ) from error
        launcher, size, _ = launched()
        raise UserError(
            f"{launcher} started {size} processes, and Horovod cannot be imported here ({error}); "
            "install it (launch/setup.sh) or start one process without a launcher"
        ) from error
    return hvd


def build() -> dict[str, Any]:
    """Horovod's version and what it was built with; nccl is a version, such as 21805, or 0; no rank is needed."""
    hvd = horovod()
    from horovod import __version__

    kinds = {name: bool(getattr(hvd, f"{name}_built")()) for name in ("mpi", "gloo", "cuda", "rocm")}
    return {"version": __version__, **kinds, "nccl": int(hvd.nccl_built())}


def has_nccl() -> bool:
    """Whether there is a Horovod, and it was built to reduce by NCCL."""
    try:
        return bool(build()["nccl"])
    except UserError:
        return False


def controller() -> str:
    """The transport over which the ranks that have joined agree on their collectives: mpi or gloo."""
    return "mpi" if horovod().mpi_enabled() else "gloo"


def host_notices() -> Any:
    """Horovod's manager of the notices that hosts come or go, with init, register_listener and remove_listener."""
    horovod()
    # Not public; tests/distributed/test_joining.py needs its methods, tests/training/test_elastic.py their effect.
    from horovod.common.elastic import notification_manager

    return notification_manager


def collective_failure(error: tf.errors.OpError, who: Callable[[], str | None]) -> RunError | None:
    """The RunError for a TensorFlow error that comes from a collective; None for any other; `who` names a lost rank."""
    lines = [line.strip() for line in error.message.splitlines()]
    of_horovod = [line for line in lines if "Horovod" in line]
    if not of_horovod:
        return None
    sentences = [line for line in of_horovod if " " in line and "node" not in line] or of_horovod
    hint = who() or "the rank that has failed logs the cause"
    # A lost rank is an UnknownError. Tensors that do not match, for example, are errors of other kinds.
    kind = LostPeer if isinstance(error, tf.errors.UnknownError) else RunError
    return kind(f"a collective has failed: {sentences[-1][:300]}; {hint}")


@contextlib.contextmanager
def failures_in_words(who: Callable[[], str | None]) -> Iterator[None]:
    """Replace the errors of collectives within by collective_failure(): a LostPeer, or another RunError."""
    try:
        yield
    except tf.errors.OpError as error:
        if failure := collective_failure(error, who):
            raise failure from error
        raise


def versions() -> dict[str, str]:
    """The version of Python and of each library, by name, without Horovod's."""
    return {
        "hvdgan": __version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }
