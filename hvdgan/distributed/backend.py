"""The only module that imports Horovod: on first use, after a check that it was built for this TensorFlow."""

import functools
from typing import Any

import tensorflow as tf

from hvdgan.errors import UserError
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
