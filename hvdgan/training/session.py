"""Trains a run on one set of ranks: watches them, builds, restores, trains, and words each known error in one line."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from hvdgan.data.batches import Batches
from hvdgan.distributed.affinity import reading_threads
from hvdgan.distributed.collective_errors import collective_failure, failures_in_words
from hvdgan.distributed.liveness import heartbeat
from hvdgan.distributed.liveness.heartbeat import Heartbeat
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RankFailed, RunError, unwritable
from hvdgan.networks import cpu_or_gpu
from hvdgan.recipe import recipe_errors
from hvdgan.runs.events import End, Event
from hvdgan.training.build import Run, build, folder_of
from hvdgan.training.command import Command
from hvdgan.training.loggers import LoggerChoice
from hvdgan.training.loop import Loop
from hvdgan.training.memory import OUT_OF_MEMORY, MemoryGuard
from hvdgan.training.observations import Observations
from hvdgan.training.pending import PendingSteps
from hvdgan.training.periodic import PeriodicTasks
from hvdgan.training.record import Record
from hvdgan.training.report import Page
from hvdgan.training.restore import restore, saved_maps
from hvdgan.training.resume_point import Commits, HostsChanged, ResumePoint
from hvdgan.training.stopping import Stopping
from hvdgan.training.summary import announce


def watch(command: Command, ranks: Ranks, *, elastic: bool = False) -> Heartbeat:
    """Begin to watch the other ranks; every rank calls this. An elastic run continues without a lost one."""
    config = command.config
    with failures_in_words(lambda: None):
        return heartbeat.start(
            ranks.rank,
            ranks.gather,
            config.peer_timeout,
            None if command.dry_run else folder_of(config),
            elastic=elastic,
            stall_seconds=config.stall_timeout,
            activity=ranks.activity,
        )


def build_and_restore(command: Command, ranks: Ranks, commits: Commits) -> tuple[Run, ResumePoint]:
    """Build a run and restore it; every rank calls this."""
    known = saved_maps(command.config, command.resume.resume, ranks)
    run = build(command.config, command.recipe, command.options, ranks, known)
    return run, restore(run, command.resume, commits)


def train(
    run: Run,
    resume_point: ResumePoint,
    heart: Heartbeat,
    stopping: Stopping,
    commits: Commits,
    page: Page,
    *,
    loggers: Sequence[LoggerChoice] = (),
) -> bool:
    """Train to the last step of the schedule or of --max-steps; every rank calls this.

    Returns False if the run has stopped on request, and is saved. The lock of the resume point is released at the end.

    Raises:
        RunError: a checkpoint cannot be written; data or losses fail; LostPeer: a collective has failed.
        HostsChanged: other ranks are to take part in an elastic run.
    """
    stopping.take_interrupts()
    is_root, first = run.ranks.is_root, resume_point.step
    guard = MemoryGuard(run)
    with resume_point.lock or contextlib.nullcontext():
        with _in_words(run, heart, guard):
            record = Record(run.run_dir, is_root=is_root, start_step=first, total_steps=run.last_step)
        page.run_dir = run.run_dir if is_root else None
        with contextlib.closing(record), _in_words(run, heart, guard, record.tell):
            announce(run, resume_point, record)
            page.is_finished = first >= run.last_step
            if page.is_finished:
                return True
            record.open_loggers(loggers, run.settings(), stopping.ask)
            observations = Observations(run, resume_point, record)
            tasks = PeriodicTasks(run, resume_point, record, commits, observations)
            pending = PendingSteps(observations, cpu_or_gpu.chosen().steps_behind)
            loop = Loop(run, resume_point, stopping, pending, tasks)
            with _open_batches(run, resume_point) as batches:
                page.is_finished = loop.train(batches, guard)
    return page.is_finished


def _open_batches(run: Run, resume_point: ResumePoint) -> Batches:
    config, ranks = run.config, run.ranks
    return Batches(
        run.source,
        seed=config.seed,
        global_batch_size=config.global_batch_size,
        places=ranks.slice_of(config.global_batch_size),
        position=resume_point.position,
        threads=reading_threads(config.pipeline.threads, ranks),
        prefetch=config.pipeline.prefetch,
        max_bad_fraction=config.max_bad_fraction,
        device="gpu:0" if tf.config.list_logical_devices("GPU") else None,
    )


@contextlib.contextmanager
def _in_words(
    run: Run, heart: Heartbeat, guard: MemoryGuard, tell: Callable[[Event], None] = lambda event: None
) -> Iterator[None]:
    """Raise an error of a known kind as one line, and any other as it is; log it first."""
    try:
        yield
    except (RunError, OSError, MemoryError, tf.errors.OpError) as error:
        failure = _translate(error, run, heart, guard)
        tell(End(state="failed", text=str(failure)))
        if failure is error:
            raise
        raise failure from error
    except HostsChanged:
        raise
    except Exception as error:  # such as one of a recipe's code; its traceback is on the terminal
        tell(End(state="failed", text=" ".join(f"{type(error).__name__}: {error}".split())[:500]))
        raise


def _translate(error: Exception, run: Run, heart: Heartbeat, guard: MemoryGuard) -> Exception:
    """Return an error whose message names what has failed and what to do; an error of an unknown kind as it is."""
    if isinstance(error, RankFailed) and isinstance(error.__cause__, Exception):
        known = _translate(error.__cause__, run, heart, guard)
        return error if known is error.__cause__ else known
    if isinstance(error, OUT_OF_MEMORY):
        return guard.failure(error)
    if isinstance(error, OSError):
        return unwritable(run.run_dir, error)
    if isinstance(error, tf.errors.OpError):
        updates = ((stage.name, update.name) for stage in run.schedule.stages for update in stage.updates)
        return (
            collective_failure(error, heart.explanation) or recipe_errors.in_graph(error, run.recipe, updates) or error
        )
    return error
