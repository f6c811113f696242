"""Trains a run on one set of ranks: watches them, builds, restores, trains, and words each known error in one line."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from tqdm import tqdm

from hvdgan.data.batches import Batches
from hvdgan.distributed.affinity import reading_threads
from hvdgan.distributed.backend import collective_failure, failures_in_words
from hvdgan.distributed.liveness import heartbeat
from hvdgan.distributed.liveness.heartbeat import Heartbeat
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RankFailed, RunError, unwritable
from hvdgan.recipe import recipe_errors
from hvdgan.runs.events import End, Event
from hvdgan.training.build import Run, build, folder_of
from hvdgan.training.command import Command
from hvdgan.training.loggers import LoggerChoice
from hvdgan.training.loop import Loop, Reached
from hvdgan.training.memory import OUT_OF_MEMORY, MemoryGuard
from hvdgan.training.page import Page
from hvdgan.training.record import Record
from hvdgan.training.restore import restore, saved_maps
from hvdgan.training.saving import Commits, HostsChanged
from hvdgan.training.stopping import Stopping
from hvdgan.training.summary import announce, end_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """What a command is trained with, on whichever ranks."""

    command: Command
    stopping: Stopping
    page: Page
    loggers: Sequence[LoggerChoice] = ()
    """loggers for rank 0 to open"""
    commits: Commits = dataclasses.field(default_factory=Commits)


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


def train(session: Session, ranks: Ranks, heart: Heartbeat) -> Reached:
    """Build the run of a command, restore it and train to its last step; every rank calls this.

    HostsChanged says that other ranks are to take part in an elastic run, and LostPeer that a collective has failed.
    """
    command, page = session.command, session.page
    known = saved_maps(command.config, command.resume.resume, ranks)
    with _start_shown(ranks):
        run = build(command.config, command.recipe, command.options, ranks, known)
    resume_point = restore(run, command.resume, session.commits)
    session.stopping.take_interrupts()
    first, guard = resume_point.step, MemoryGuard(run)
    with resume_point.lock or contextlib.nullcontext():
        with _in_words(run, heart, guard):
            record = Record(run.run_dir, is_root=ranks.is_root, start_step=first, total_steps=run.last_step)
        page.run_dir = run.run_dir if ranks.is_root else None
        with contextlib.closing(record), _in_words(run, heart, guard, record.tell):
            announce(run, resume_point, record)
            page.is_finished = first >= run.last_step
            if page.is_finished:
                return Reached(first, is_finished=True)
            record.open_loggers(session.loggers, run.settings(), session.stopping.ask)
            loop = Loop(run, resume_point, record=record, stopping=session.stopping, commits=session.commits, page=page)
            loop.warns_of_no_means &= command.allow is None
            with open_batches(run, resume_point.position) as batches:
                reached = loop.do_steps(batches, guard)
            reason = None if reached.is_finished else session.stopping.reason
            record.tell(end_of(run, first, reached.step, reason))
            page.is_finished = reached.is_finished
    return reached


@contextlib.contextmanager
def _start_shown(ranks: Ranks) -> Iterator[None]:
    """Show on rank 0 what the block does, if a person looks: on the last line of the terminal, which is wiped out."""
    hidden = None if ranks.is_root else True  # None: where there is no terminal
    form = "{desc} ({elapsed})"
    with tqdm(
        desc="starting", file=sys.stderr, bar_format=form, dynamic_ncols=True, leave=False, disable=hidden
    ) as line:
        ranks.activity.doing = line.set_description_str
        try:
            yield
        finally:
            ranks.activity.doing = lambda what: None


def open_batches(run: Run, position: int, threads: int | None = None) -> Batches:
    """Open this rank's batches of a run, from a position in the order of the data, read by this number of threads."""
    config, ranks = run.config, run.ranks
    return Batches(
        run.source,
        seed=config.seed,
        global_batch_size=config.global_batch_size,
        places=ranks.slice_of(config.global_batch_size),
        position=position,
        threads=threads or reading_threads(config.pipeline.threads, ranks),
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
        updates = ((stage.name, update.name) for stage in run.plan.stages for update in stage.updates)
        return (
            collective_failure(error, heart.explanation) or recipe_errors.in_graph(error, run.recipe, updates) or error
        )
    return error
