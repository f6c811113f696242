"""Joins the ranks that a launcher has started, once or again after changes, and gives each its GPU or its cores."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.distributed import affinity, backend, devices
from hvdgan.distributed.liveness import heartbeat
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError, UserError
from hvdgan.launching.hosts import name_without_address
from hvdgan.launching.launched import launched, local_rank, local_size, refuse_srun_without_pmi

# Variables that Horovod and MPI read when they start; values that the user has set stay.
_ALWAYS = {
    # Four ranks that start on two cores can be a minute apart; Gloo's own 30 s would end the run.
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "300",
    # Without it a stalled collective warns for ever and never ends.
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600",
}
# Without GPUs, Horovod's thread wakes up on the cores that compute, and over MPI it polls there. Because it never
# preempts the compute thread (affinity.background_threads), it may wake up often (docs/performance.md).
_CPU_MPI = {"OMPI_MCA_mpi_yield_when_idle": "1", "HOROVOD_CYCLE_TIME": "0.5"}
# Two ranks reduce tensor by tensor; only small tensors are worth a copy into a common buffer and back.
_CPU_PAIR = {"HOROVOD_FUSION_THRESHOLD": str(1024 * 1024)}
_CPU_PAIR_MPI = {"HOROVOD_CYCLE_TIME": "0.1"}
_CPU_PAIR_GLOO = {"HOROVOD_CYCLE_TIME": "0.2"}
# Otherwise Horovod's thread waits on the host until a reduction has ended, and only then may TensorFlow enqueue what
# uses its result. With it TensorFlow's stream waits for the reduction on the GPU, and the host is free to enqueue the
# next kernels. Horovod itself then no longer sees NCCL's errors; the heartbeat still sees a rank that dies or stands
# still. The other variables stay as Horovod has them.
_GPU = {"HOROVOD_ENABLE_ASYNC_COMPLETION": "1"}


def claim() -> None:
    """Claim this rank's GPU or cores as the launcher's environment names them, before any rank is joined.

    It must run before a user's file is imported, because a TensorFlow operation in that file fixes devices and threads.
    start() claims again by Horovod's numbers, which are the same.
    """
    launcher, size, rank = launched()
    with contextlib.suppress(RuntimeError):  # operations have already run; start() raises if that matters
        _set_devices(Ranks(rank, size, local_rank(), local_size(), launcher))


def start(expect_size: int | None = None, *, share_gpu: bool = False, deterministic: bool = False) -> Ranks:
    """Find the launcher, join the other ranks, and give this rank its GPU and its share of the cores.

    Ranks that share a GPU all reduce over the host's memory. A UserError says that the ranks cannot meet, that their
    number is not the expected one (None: as many as were started), or that their devices do not fit together.
    """
    claim()
    launcher, started, _ = launched()
    on_gpu = devices.on_gpus()
    ranks = Ranks(launcher=launcher) if started == 1 else _join(launcher, on_gpu, pair=started == 2)
    _check_size(ranks, started, expect_size)
    _claim_devices(ranks)
    if ranks.size > 1 and not on_gpu and "TF_NUM_INTRAOP_THREADS" not in os.environ:
        ranks = dataclasses.replace(ranks, cores=affinity.cores_of_rank(ranks))
        affinity.bind(ranks.local_rank, ranks.local_size, ranks.cores)
    devices.check(devices.everyones_devices(ranks), share_gpu=share_gpu)
    return dataclasses.replace(ranks, reduces_on_host=share_gpu, deterministic=deterministic)


def is_elastic() -> bool:
    """Whether ranks may come and go: horovodrun was started with a host-discovery script."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


class Membership:
    """Joins the ranks, and again after each change; use it in a `with` statement.

    It replaces horovod.common.elastic.run_fn, which differs in three ways: it decides which errors mean a lost peer, it
    restores the state from rank 0 even if that rank is new, and it forgets a notice that arrives during a rendezvous.
    """

    def __init__(self, slice_unit: int, *, share_gpu: bool = False, deterministic: bool = False) -> None:
        self.ranks = Ranks()
        self._settings: dict[str, Any] = {
            "slice_unit": slice_unit,
            "reduces_on_host": share_gpu,
            "deterministic": deterministic,
        }
        self._joined = False
        self._noticed = False

    def __enter__(self) -> "Membership":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._joined:
            backend.host_notices().remove_listener(self)

    def join(self) -> Ranks:
        """Join the ranks for the first time, or the remaining and the new ones after a change; no collective runs yet.

        A RunError says that this process is no longer one of the ranks.
        """
        hvd, on_gpu = backend.horovod(), devices.on_gpus()
        if not hvd.gloo_built():
            raise UserError(
                "elastic runs go over Gloo, and this Horovod was built without; launch/setup.sh builds one with it"
            )
        self._noticed = False
        if self._joined:
            hvd.shutdown()
        try:
            ranks = _join("horovodrun", on_gpu, pair=False)
        except ValueError as error:  # Horovod has written the reason to stderr
            raise RunError(
                "this process has left the run: its host is no longer in it, or the ranks did not find each other again"
            ) from error
        # Horovod updates only the C environment, which os.environ does not see.
        os.environ.update(HOROVOD_RANK=str(ranks.rank), HOROVOD_SIZE=str(ranks.size))
        self.ranks = dataclasses.replace(ranks, **self._settings)
        if not self._joined:
            _claim_devices(ranks)
            notices = backend.host_notices()
            notices.init()
            notices.register_listener(self)
            self._joined = True
        return self.ranks

    def on_hosts_updated(self, timestamp: int, result: Any) -> None:
        """Record a notice; a thread of Horovod's calls it, only on the rank that the driver knows as the first."""
        self._noticed = True

    def hosts_changed(self) -> bool:
        """Whether any rank has received a notice that hosts come or go; every rank calls it."""
        return bool(self.ranks.stack(np.array([self._noticed], np.float32)).any())


def set_defaults(*, on_gpu: bool, over_mpi: bool, pair: bool, elastic: bool = False) -> None:
    """Set the variables of Horovod and MPI that are not set; call it before Horovod is initialised."""
    settings = dict(_ALWAYS)
    if on_gpu and not elastic:
        settings |= _GPU
    if not on_gpu and over_mpi:
        settings |= _CPU_MPI
    if not on_gpu and pair:
        settings |= _CPU_PAIR | (_CPU_PAIR_MPI if over_mpi else _CPU_PAIR_GLOO)
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def _join(launcher: str, on_gpu: bool, *, pair: bool) -> Ranks:
    hvd = backend.horovod()
    over_mpi = hvd.mpi_built() and os.environ.get("HOROVOD_CONTROLLER") != "gloo"
    set_defaults(on_gpu=on_gpu, over_mpi=over_mpi, pair=pair, elastic=is_elastic())
    refuse_srun_without_pmi(over_mpi=over_mpi)
    if not over_mpi and (name := name_without_address()):
        raise UserError(  # Gloo would end this process by a segmentation fault
            f"the name of this host has no address: {name}; add a line with its address and its name to /etc/hosts"
        )
    with contextlib.nullcontext() if on_gpu else affinity.background_threads():
        hvd.init()
    return Ranks(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), launcher, on_gpu=on_gpu)


def _check_size(ranks: Ranks, started: int, expect_size: int | None) -> None:
    if expect_size is not None and ranks.size != expect_size:
        raise UserError(
            f"--expect-size {expect_size}: there are {ranks.size} ranks (launcher: {ranks.launcher}); "
            "start as many processes as are expected"
        )
    if ranks.size != started:
        raise UserError(
            f"{ranks.launcher} started {started} processes, and Horovod sees {ranks.size}: every process would train "
            "alone; start with horovodrun, or build Horovod with the MPI that the launcher uses (srun: --mpi=pmix)"
        )


def _claim_devices(ranks: Ranks) -> None:
    try:
        _set_devices(ranks)
    except RuntimeError as error:
        raise UserError(
            "a recipe's file ran TensorFlow operations when it was imported, before this process knew that it is local "
            f"rank {ranks.local_rank} of {ranks.local_size}, which its launcher does not put into the environment; "
            f"make tensors and networks in networks() ({error})"
        ) from error


def _set_devices(ranks: Ranks) -> None:
    # Before any collective: the first operation fixes TensorFlow's devices and threads.
    devices.claim(ranks.local_rank)
    on_gpu = devices.on_gpus()
    if not on_gpu and ranks.size > 1 and "TF_NUM_INTRAOP_THREADS" not in os.environ:
        tf.config.threading.set_intra_op_parallelism_threads(affinity.cores_of_rank(ranks))


@contextlib.contextmanager
def joined(peer_timeout: float, *, share_gpu: bool = False) -> Iterator[Ranks]:
    """Join the ranks of a command, after claim(), and watch them until the block ends; say which one was lost.

    peer_timeout: silence of a rank after which all ranks end (seconds).
    """
    with backend.failures_in_words(lambda: None):
        ranks = start(share_gpu=share_gpu)
        heart = heartbeat.start(ranks.rank, ranks.gather, peer_timeout, None, activity=ranks.activity)
    with heart, backend.failures_in_words(heart.explanation):
        yield ranks
        ranks.shutdown()
