"""Executes a command of hvdgan train: its ranks join, and describe the run or train it."""

import itertools
from collections.abc import Iterator, Sequence

import tensorflow as tf

from hvdgan.data import BadFile
from hvdgan.data.bad_files import in_words
from hvdgan.distributed import joining
from hvdgan.distributed.backend import failures_in_words
from hvdgan.distributed.devices import everyones_devices, limit_memory
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors.shared_errors import from_all
from hvdgan.training.build import Run, build, folder_of
from hvdgan.training.command import Command
from hvdgan.training.initial_weights import proposal
from hvdgan.training.loggers import LoggerChoice, chosen_loggers
from hvdgan.training.loop import Reached
from hvdgan.training.means import MeanCheck
from hvdgan.training.page import Page
from hvdgan.training.session import Session, open_batches, train, watch
from hvdgan.training.stopping import Stopping
from hvdgan.training.summary import as_if, describe


def execute(command: Command, own: Sequence[LoggerChoice] = (), *, is_process: bool) -> Reached | None:
    """Train as a command says, on every rank, and return where the run has ended; None if it is only described.

    `own` are loggers that Python code has given. If not `is_process`, a program continues and may train again.
    """
    config, loggers = command.config, chosen_loggers(command.config.logger, own)
    limit_memory(config.gpu_memory_limit, shared=config.share_gpu)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    with Page(config.report) as page:
        if joining.is_elastic() and not command.dry_run:
            from hvdgan.training.elastic import train_elastic  # only elastic runs need it

            return train_elastic(command, page, loggers)
        with failures_in_words(lambda: None):
            ranks = joining.start(command.expect_size, share_gpu=config.share_gpu, deterministic=config.deterministic)
        with watch(command, ranks) as heart, failures_in_words(heart.explanation):
            if command.dry_run:
                _describe(command, ranks)
                reached = None
            else:
                # Requests to stop are noticed from before the build on.
                stop_file = folder_of(config) / "stop"
                with Stopping(ranks, stop_file, command.time_budget, ends_process=is_process) as stopping:
                    session = Session(command=command, stopping=stopping, page=page, loggers=loggers)
                    reached = train(session, ranks, heart)
            if is_process:
                ranks.shutdown()
            else:  # a program may train again, and Horovod's ring is there once
                ranks.meet("the end of the run")
        return reached


def _describe(command: Command, ranks: Ranks) -> None:
    run = build(command.config, command.recipe, command.options, ranks)
    if command.config.init_map == "print":
        if ranks.is_root:
            print("\n".join(proposal(run.config, run.state)))
        return
    devices = everyones_devices(ranks)
    bad_files = from_all(lambda: _bad_files(run), ranks, "the first batch")
    if ranks.is_root:
        print(describe(run, devices))
        if named := list(dict.fromkeys(map(tuple, itertools.chain(*bad_files)))):
            print(f"samples that cannot be read, and are replaced by others: {in_words(named)}")
        for line in _as_if(run, command, command.as_if_ranks) if command.as_if_ranks else ():
            print(line)


def _bad_files(run: Run) -> list[BadFile]:
    """The samples that could not be read on opening, or now for this rank's first batch."""
    # One thread: with several, another batch may meet a broken sample first, and be the one that is refused for it.
    with open_batches(run, 0, threads=1) as batches:
        next(batches)
        return batches.bad_files


def _as_if(run: Run, command: Command, size: int) -> Iterator[str]:
    """Describe the run on this number of ranks, and name the losses that depend on it."""
    yield from as_if(run, size)
    if command.allow is None:
        with open_batches(run, 0) as batches:
            data = next(batches)
        for step in run.steps:
            yield from MeanCheck(run, step, data).lines(0)
