"""The ranks of one run and what they say to each other; only membership.py imports Horovod beside this.

At size 1 everything here is a no-op, also where Horovod is not installed. Collectives are calls that every rank must
make: none may stand under `if is_root`.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.launcher import launched, local_rank, local_size, refuse_srun_without_pmi
from hvdgan.distributed import bundling, devices
from hvdgan.distributed import environment as transport
from hvdgan.distributed.liveness.activity import Activity


@dataclasses.dataclass(frozen=True)
class Ranks:
    """This process among its peers: rank 0 <= rank < size, local_rank on its host, and the launcher's name.

    uneven_by: 0 where all ranks' slices of the global batch must be equal; else they may differ, by so many samples.
    cores: that this rank was given; 0: it has those that it was started with.
    activity: how far this rank's main thread has come.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = "none"
    uneven_by: int = 0
    cores: int = 0
    activity: Activity = dataclasses.field(default_factory=Activity, compare=False, repr=False)

    @property
    def is_root(self) -> bool:
        return self.rank == 0

    def slice_of(self, global_batch_size: int) -> tuple[int, int]:
        """The (first, past the last) place of this rank's samples in the global batch.

        Raises:
            UserError: size does not divide global_batch_size and slices must be equal, or a rank would get nothing.
        """
        if self.uneven_by:
            bounds = self._bounds(global_batch_size)
            return bounds[self.rank], bounds[self.rank + 1]
        if global_batch_size % self.size:
            below = global_batch_size // self.size * self.size
            possible = f"{below} or {below + self.size}" if below else f"{self.size}"
            raise UserError(
                f"--global-batch-size {global_batch_size}: cannot be split evenly over {self.size} ranks; "
                f"take {possible}"
            )
        local = global_batch_size // self.size
        return self.rank * local, (self.rank + 1) * local

    def weights(self, global_batch_size: int) -> list[float]:
        """What a rank's mean over its slice is multiplied with, so that the mean over ranks is that over all samples.

        1.0 for each where the slices are equal.
        """
        if not self.uneven_by:
            return [1.0] * self.size
        bounds = self._bounds(global_batch_size)
        return [(last - first) * self.size / global_batch_size for first, last in itertools.pairwise(bounds)]

    def _bounds(self, global_batch_size: int) -> tuple[int, ...]:
        """Where the slices begin, in the order of the ranks, and where the last one ends."""
        units, rest = divmod(global_batch_size, self.uneven_by)
        if units < self.size or rest:
            raise UserError(
                f"--global-batch-size {global_batch_size}: cannot be cut into micro-batches for {self.size} ranks; "
                f"take a multiple of {self.uneven_by} (--accumulate), at least {self.size * self.uneven_by}"
            )
        return tuple(rank * units // self.size * self.uneven_by for rank in range(self.size + 1))

    def reduced_gradients(
        self,
        tape: tf.GradientTape,
        loss: tf.Tensor,
        variables: Sequence[keras.Variable],
        compression: str = "none",
    ) -> list[tf.Tensor]:
        """Gradients of the losses' mean over the ranks with respect to exactly these variables.

        Call it inside a tf.function and under a name scope of stage and update: Horovod matches tensors by name.

        Args:
            tape: the tape that recorded the loss.
            loss: scalar, the mean over this rank's samples, times loss_factor(compression).
            variables: Keras variables; the tape is asked for the tf.Variable inside each.
            compression: "none", or "fp16": they travel, and are summed, in float16.

        Returns:
            One dense tensor per variable.
        """
        values = [variable.value for variable in variables]
        if self.size == 1:
            return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, values)]
        hvd = _horovod()
        tape = hvd.DistributedGradientTape(
            bundling.tape_of_bundles(tape, values),
            # One group: with several, or none, three and more ranks sum in another order at every run. Two have one
            # order, and reduce what is ready while the rest is computed.
            groups=1 if self.size > 2 else None,
            compression=getattr(hvd.Compression, compression),
            op=hvd.Average if self.loss_factor(compression) == 1.0 else hvd.Sum,
        )
        # Horovod's tape wants a source for each gradient, and asks of it only that it is not another's.
        sources = [values[places[0]] for places in bundling.bundles(values)]
        return bundling.unbundle(tape.gradient(loss, sources), values)

    def loss_factor(self, compression: str = "none") -> float:
        """What reduced_gradients() wants the loss multiplied with.

        A loss divided by the number of ranks costs nothing, and gradients divided after their sum a pass over all of
        them. In float16 the smallest ones would be lost.
        """
        return 1.0 / self.size if compression == "none" else 1.0

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """The mean over ranks of a tensor, through which gradients flow; call it inside a tf.function.

        It is a group of its own, since what Horovod packs together by chance is summed in another order at every run.
        """
        if self.size == 1:
            return values
        return _horovod().grouped_allreduce([values], op=_horovod().Average)[0]

    def stack(self, values: np.ndarray) -> np.ndarray:
        """Every rank's array, floating-point and of one shape, stacked in the order of the ranks: (size, ...)."""
        if self.size == 1 or not values.size:
            return np.stack([values] * self.size)
        with self.activity.at("stack"):
            return _horovod().allgather(tf.constant(values[None])).numpy()

    def broadcast(self, variables: Sequence[keras.Variable], root: int = 0) -> None:
        """Give every rank the values that the root has."""
        if self.size > 1 and variables:
            with self.activity.at("broadcast of variables"):
                values = [variable.value for variable in variables]
                _horovod().broadcast_variables(values, root_rank=root, inplace=False)

    def broadcast_array(self, values: np.ndarray, root: int = 0) -> np.ndarray:
        """The root's array; the others give one of the same shape and dtype."""
        if self.size == 1 or not values.size:
            return values
        with self.activity.at("broadcast"):
            return _horovod().broadcast(tf.constant(values), root_rank=root).numpy()

    def gather(self, value: Any, name: str) -> list[Any]:
        """Every rank's value, in the order of the ranks. The value must be expressible in JSON.

        Raises:
            RunError: on every rank, when one of them gathers something of another name.
        """
        if self.size == 1:
            return [value]
        hvd = _horovod()
        # The name travels along: outside a tf.function Horovod drops it, and would match what does not belong together.
        encoded = np.frombuffer(json.dumps([name, value]).encode(), np.uint8)
        with self.activity.at(f"gather: {name}"):
            self.activity.wait_for_all()
            lengths = hvd.allgather(tf.constant([len(encoded)], tf.int64)).numpy()
            everything = hvd.allgather(tf.constant(encoded)).numpy().tobytes()
        ends = np.cumsum(lengths)
        named = [json.loads(everything[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
        if len({name for name, _ in named}) > 1:
            raise RunError(f"the ranks are not at the same point: they gather {', '.join(name for name, _ in named)}")
        return [value for _, value in named]

    def from_root(self, work: Callable[[], Any], name: str) -> Any:
        """Let rank 0 do something; every rank gets its result (expressible in JSON), or an error if there was one.

        Raises:
            RunError: what the work raised; on the other ranks also where that was something else.
        """
        result: dict[str, Any] = {}
        failure = None
        if self.is_root:
            try:
                result = {"value": work()}
            except Exception as error:  # whatever it is, the others must not wait for a result that never comes
                failure = error
                text = str(error) if isinstance(error, RunError) else f"rank 0 failed: {error!r}"
                result = {"error": text, "exit_code": getattr(error, "exit_code", RunError.exit_code)}
        result = self.gather(result, name)[0]
        if failure is not None:
            raise failure
        if "error" in result:
            raise (UserError if result["exit_code"] == UserError.exit_code else RunError)(result["error"])
        return result["value"]

    def meet(self, name: str) -> None:
        """Wait for all ranks without a Horovod collective, after work of one rank alone that may take long."""
        if self.size > 1:
            with self.activity.at(name):
                self.activity.wait_for_all()

    def agree(self, facts: dict[str, Any], what: str) -> None:
        """Compare facts (expressible in JSON) between the ranks.

        Raises:
            RunError: on every rank alike, naming the first fact that differs and who has which value.
        """
        everyone = self.gather(facts, what)
        for key in dict.fromkeys(key for each in everyone for key in each):
            values = [each.get(key) for each in everyone]
            for rank, value in enumerate(values):
                if value != values[0]:
                    raise RunError(
                        f"the ranks disagree on {what}: {key} is {_short(values[0])} on rank 0 and {_short(value)} on "
                        f"rank {rank}; start every rank with the same command on the same files"
                    )

    def shutdown(self) -> None:
        """Leave the ring in order; every rank calls it when the work is done."""
        if self.size > 1:
            with self.activity.at("shutdown"):
                _horovod().shutdown()


def claim() -> None:
    """Take what this rank will compute on, as far as the launcher's environment says it, before any rank is joined.

    It comes before a user's file is imported: an operation that runs there fixes TensorFlow's devices and threads.
    start() claims again what Horovod says, which is the same, and then changes nothing.
    """
    launcher, size, rank = launched()
    with contextlib.suppress(RuntimeError):  # operations have run before; start() says so where it matters
        _set_devices(Ranks(rank, size, local_rank(), local_size(), launcher))


def start(expect_size: int | None = None) -> Ranks:
    """Find the launcher, join the other ranks, and give this rank its GPU and its share of the cores.

    Args:
        expect_size: the number of ranks that must be there; None: the number that the launcher speaks of.

    Raises:
        UserError: Horovod is missing or was built for another TensorFlow, the ranks cannot meet or are not as many as
            expected, or a rank has no GPU of its own where the others have.
    """
    launcher, started, _ = launched()
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    ranks = Ranks(launcher=launcher) if started == 1 else _join(launcher, on_gpu, pair=started == 2)
    _check_size(ranks, started, expect_size)
    _claim_devices(ranks)
    if ranks.size > 1 and not on_gpu and "TF_NUM_INTRAOP_THREADS" not in os.environ:
        ranks = dataclasses.replace(ranks, cores=cores_of_rank(ranks))
        devices.bind(ranks.local_rank, ranks.local_size, ranks.cores)
    check_devices(ranks)
    return ranks


def alone(local_rank: int = 0) -> Ranks:
    """One rank of one, whatever a launcher says, on the GPU that the local rank of several would have."""
    ranks = Ranks(local_rank=local_rank)
    _claim_devices(ranks)
    return ranks


def is_elastic() -> bool:
    """Whether the launcher lets ranks come and go: horovodrun with a host-discovery script."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


def join_elastic(*, again: bool, uneven_by: int) -> Ranks:
    """Join the ranks of an elastic run, and claim this rank's devices; nothing is said to the others yet.

    Args:
        again: whether this process has been a rank before. It waits then until the launcher knows who remains, and
            those that are new have started.
        uneven_by: of the ranks.

    Raises:
        RunError: this process is no longer one of them.
    """
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    if again:
        _horovod().shutdown()
    try:
        ranks = _join("horovodrun", on_gpu, pair=False)
    except ValueError as error:  # what went wrong, Horovod has written to stderr
        raise RunError(
            "this process has left the run: its host is no longer in it, or the ranks did not find each other again"
        ) from error
    # Horovod tells C's environment alone.
    os.environ.update(HOROVOD_RANK=str(ranks.rank), HOROVOD_SIZE=str(ranks.size))
    if not again:
        _claim_devices(ranks)
    return dataclasses.replace(ranks, uneven_by=uneven_by)


def horovod_build() -> dict[str, Any]:
    """What Horovod here was built with, which its library tells without joining any other rank.

    Returns:
        version; mpi and gloo: whether ranks can meet over it; nccl: its version, such as 21805, or 0; cuda, rocm.

    Raises:
        UserError: it cannot be imported, or was built for another TensorFlow.
    """
    hvd = _horovod()
    import horovod

    kinds = {name: bool(getattr(hvd, f"{name}_built")()) for name in ("mpi", "gloo", "cuda", "rocm")}
    return {"version": horovod.__version__, **kinds, "nccl": int(hvd.nccl_built())}


def controller() -> str:
    """Over what the ranks that have joined agree on their collectives: mpi or gloo."""
    return "mpi" if _horovod().mpi_enabled() else "gloo"


@contextlib.contextmanager
def timeline(path: str) -> Iterator[None]:
    """Let Horovod write what it does within, as chrome://tracing reads it; every rank calls it, and rank 0 writes.

    HOROVOD_TIMELINE must have been DYNAMIC when the ranks joined.
    """
    _horovod().start_timeline(path)
    try:
        yield
    finally:
        _horovod().stop_timeline()


def _join(launcher: str, on_gpu: bool, *, pair: bool) -> Ranks:
    hvd = _horovod()
    over_mpi = hvd.mpi_built() and os.environ.get("HOROVOD_CONTROLLER") != "gloo"
    transport.set_defaults(on_gpu=on_gpu, over_mpi=over_mpi, pair=pair)
    refuse_srun_without_pmi(over_mpi=over_mpi)
    with contextlib.nullcontext() if on_gpu else devices.started_threads_do_not_interrupt():
        hvd.init()
    return Ranks(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), launcher)


@functools.cache
def _horovod() -> Any:
    try:
        from horovod.common.exceptions import HorovodVersionMismatchError
        from horovod.common.util import check_installed_version

        # Before the import proper: a library built for another TensorFlow fails with a missing symbol, or worse, loads.
        check_installed_version("tensorflow", tf.__version__, exception=ImportError())
        import horovod.tensorflow as hvd
    except (ImportError, tf.errors.OpError) as error:  # TensorFlow's own where a library such as MPI's is not found
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
            f"TensorFlow operations have run before this process became local rank {ranks.local_rank} of "
            f"{ranks.local_size}, and its launcher had not said that it would; a recipe's file must make its tensors "
            f"and networks in networks(), not when it is imported ({error})"
        ) from error


def _set_devices(ranks: Ranks) -> None:
    # Before any collective: the first one fixes TensorFlow's devices and threads.
    devices.claim(ranks.local_rank)
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    if not on_gpu and ranks.size > 1 and "TF_NUM_INTRAOP_THREADS" not in os.environ:
        tf.config.threading.set_intra_op_parallelism_threads(cores_of_rank(ranks))


def check_devices(ranks: Ranks) -> None:
    """Refuse ranks that would compute in the wrong place; every rank calls it.

    Raises:
        UserError: a rank has no GPU, or shares one, where the others have theirs.
    """
    devices.check(everyones_devices(ranks))


def everyones_devices(ranks: Ranks) -> list[devices.Device]:
    """What each rank computes on, in the order of the ranks; every rank calls it."""
    mine = devices.claimed(ranks.local_rank, cores_of_rank(ranks))
    return [devices.Device(**each) for each in ranks.gather(devices.facts(mine), "devices")]


def cores_of_rank(ranks: Ranks) -> int:
    """The cores a rank may use: those it is bound to, or its share where the ranks of a host are not bound.

    horovodrun never binds; mpirun and srun do unless told otherwise, and then leave fewer cores than the host has.
    """
    if ranks.cores:
        return ranks.cores
    cores = len(os.sched_getaffinity(0))
    bound = ranks.launcher != "horovodrun" and cores < (os.cpu_count() or cores)
    return cores if bound else max(1, cores // ranks.local_size)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
