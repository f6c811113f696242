"""Distributes jobs over processes of this machine, ranks of an MPI launcher, or both."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for
from typing import Any, TypeVar

from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.launcher import launched

T = TypeVar("T")
_POLL_SECONDS = 0.2
_DONE = 7  # tag of the messages about progress


class FailedElsewhere(RunError):
    """Rank 0 has failed, and reports its error itself."""


class Stopped(Exception):
    """The pool asked this process to end."""


class WorkerPool:
    """The ranks that prepare together, each with its processes; a single rank if no launcher started several.

    failed: True if only this rank has failed, so that it must end the others.

    Raises:
        UserError: MPI does not see all processes of the launcher as one group.
    """

    def __init__(self) -> None:
        launcher, size, _ = launched()
        self.rank, self.size = 0, 1
        self.failed = False
        self._comm: Any = None
        self._sent: list[Any] = []
        self._counts: dict[int, int] = {}
        if size == 1:
            return
        try:
            from mpi4py import MPI  # here, since the import starts MPI
        except (ImportError, RuntimeError) as error:
            raise UserError(
                f"{launcher} has started {size} processes, which need mpi4py and an MPI: "
                f"{' '.join(str(error).split())}; pip install mpi4py, or start one process with --workers"
            ) from error
        self._comm = MPI.COMM_WORLD
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        if self.size != size:
            raise UserError(
                f"{launcher} has started {size} processes, and MPI sees {self.size}; "
                "start it with mpirun, with srun --mpi=pmix, or as one process with --workers"
            )

    def from_root(self, work: Callable[[], T]) -> T:
        """Call a function on rank 0 only, and return its result on every rank; if it fails, raise on every rank."""
        if self._comm is None:
            return work()
        result, failure, code = None, None, 0
        if self.rank == 0:
            try:
                result = work()
            except RunError as error:
                failure, code = error, error.exit_code
            except BaseException:
                self.failed = True
                raise
        result, code = self._comm.bcast((result, code))
        if failure is not None:
            raise failure
        if code:
            elsewhere = FailedElsewhere("rank 0 has failed")
            elsewhere.exit_code = code
            raise elsewhere
        return result

    def run(
        self,
        function: Callable[..., None],
        jobs: Sequence[tuple[Any, ...]] | None,
        workers: int,
        report: Callable[[int], None],
    ) -> None:
        """Call a function once for each job, on all ranks and their processes.

        Args:
            function: function of a job's values and of a callback, which it calls after each image.
            jobs: values of the jobs, on rank 0; other ranks pass the same or None.
            workers: number of processes of this rank; 1: no further process.
            report: function that rank 0 calls from time to time with the number of images done on all ranks.

        Raises:
            RunError: a job has failed, or a process has died.
        """
        own = self._own(jobs)

        def note(count: int) -> None:
            self._note(count)
            if self.rank == 0:
                report(sum(self._counts.values()))

        work = _in_processes if workers > 1 else _here
        try:
            work(function, own, workers, note)
        except BaseException:
            self.failed = True
            raise
        self._wait_for_others(report)

    def abort(self, code: int) -> None:
        """End all ranks if there are several; call it after the error is reported."""
        if self._comm is not None:
            self._comm.Abort(code)

    def _own(self, jobs: Sequence[tuple[Any, ...]] | None) -> Sequence[tuple[Any, ...]]:
        if self._comm is None:
            return jobs or ()
        dealt = [(jobs or ())[rank :: self.size] for rank in range(self.size)] if self.rank == 0 else None
        return self._comm.scatter(dealt)

    def _note(self, count: int) -> None:
        """Send the number of images that this rank has done to rank 0, without waiting."""
        self._counts[self.rank] = count
        if self._comm is None:
            return
        if self.rank:
            self._sent = [request for request in self._sent if not request.Test()]
            self._sent.append(self._comm.isend(count, dest=0, tag=_DONE))
            return
        for other in range(1, self.size):
            while self._comm.iprobe(source=other, tag=_DONE):
                self._counts[other] = self._comm.recv(source=other, tag=_DONE)

    def _wait_for_others(self, report: Callable[[int], None]) -> None:
        """A barrier that sleeps: MPI's own would take a core from the ranks that still work."""
        if self._comm is None:
            return
        barrier = self._comm.Ibarrier()
        while not barrier.Test():
            if self.rank == 0:
                self._note(self._counts[0])
                report(sum(self._counts.values()))
            time.sleep(_POLL_SECONDS / 4)
        if self.rank == 0:
            self._note(self._counts[0])  # the last messages
        for request in self._sent:
            request.Wait()
        self._sent.clear()
        self._counts.clear()


def _here(function: Callable[..., None], jobs: Sequence[tuple[Any, ...]], _: int, note: Callable[[int], None]) -> None:
    done, noted = 0, time.monotonic()

    def tick() -> None:
        nonlocal done, noted
        done += 1
        if time.monotonic() - noted > _POLL_SECONDS:
            noted = time.monotonic()
            note(done)

    for job in jobs:
        function(*job, tick)
    note(done)


def _in_processes(
    function: Callable[..., None], jobs: Sequence[tuple[Any, ...]], workers: int, note: Callable[[int], None]
) -> None:
    # Spawned, not forked, since a fork copies locks that the progress bar's thread may hold.
    context = multiprocessing.get_context("spawn")
    done, stop = context.Value("Q", 0), context.Event()
    with ProcessPoolExecutor(
        max(1, min(workers, len(jobs))), context, initializer=_begin, initargs=(done, stop)
    ) as pool:
        waiting = {pool.submit(_one, function, job) for job in jobs}
        try:
            while waiting:
                ended, waiting = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
                for future in ended:
                    future.result()
                note(done.value)
        except BrokenProcessPool as error:
            raise RunError(
                "a process of --workers has died, killed or out of memory; finished images are not lost: "
                "give the same command again, with fewer --workers if memory is short"
            ) from error
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


_progress: Any = None
_stop: Any = None


def _begin(done: Any, stop: Any) -> None:
    """Initialize a process of the pool: share the counter, leave Ctrl-C to the parent, and end with the parent."""
    global _progress, _stop
    _progress, _stop = done, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when the parent ends: a killed parent does not close the queues on which its children wait."""
    wait_for([parent])
    os._exit(1)


def _one(function: Callable[..., None], job: tuple[Any, ...]) -> None:
    def tick() -> None:
        with _progress.get_lock():
            _progress.value += 1
        if _stop.is_set():
            raise Stopped

    function(*job, tick)
