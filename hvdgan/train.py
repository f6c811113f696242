"""The command: python -m hvdgan.train, by itself or under horovodrun, mpirun or srun."""

from hvdgan.cli import start

start.begin(__name__)

import contextlib
import os
import sys

# Before TensorFlow is loaded: its start-up lines would come from every rank.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from hvdgan.cli.app import main_of
from hvdgan.distributed import joining
from hvdgan.distributed.collective_errors import failures_in_words
from hvdgan.distributed.liveness import heartbeat
from hvdgan.distributed.ranks import Ranks
from hvdgan.training import loop, run
from hvdgan.training.command import Command, parse
from hvdgan.training.monitoring.stopping import STOPPED, Stopping


@main_of(interrupted="interrupted; with --resume auto the same command resumes from the last checkpoint")
def main(arguments: list[str]) -> int:
    """Parse, build, and train or describe."""
    # Before the command line is read, which imports the recipe: the flags depend on it.
    joining.claim()
    return _run(parse(arguments))


def _run(command: Command | None) -> int:
    if command is None:
        return 0  # it was asked for the help, which is printed
    if command.config.deterministic:
        tf.config.experimental.enable_op_determinism()
    if joining.is_elastic() and not command.dry_run:
        from hvdgan.training import elastic  # which needs Horovod

        return 0 if elastic.train(command) else STOPPED
    with failures_in_words(lambda: None):
        return _train(command, joining.start(command.expect_size))


def _train(command: Command, ranks: Ranks) -> int:
    log = None if command.dry_run else run.folder_of(command.config) / "log.txt"
    reached = True
    with (
        heartbeat.start(
            ranks.rank,
            ranks.gather,
            command.config.peer_timeout,
            log,
            stall_seconds=command.config.stall_timeout,
            activity=ranks.activity,
        ) as heart,
        failures_in_words(heart.opinion),
        _stopping(command, ranks) as stopping,
    ):
        built = run.build(command.config, command.recipe, command.options, ranks)
        if command.dry_run:
            if ranks.is_root:
                print(run.describe(built))
        else:
            reached = loop.train(built, command.resume, heart, stopping)
        ranks.shutdown()
    return 0 if reached else STOPPED


def _stopping(command: Command, ranks: Ranks) -> contextlib.AbstractContextManager[Stopping | None]:
    """Notices signals from before the build on; a dry run has nothing to save, and ends at the first one."""
    if command.dry_run:
        return contextlib.nullcontext()
    return Stopping(ranks, run.folder_of(command.config) / "stop", command.time_budget)


if __name__ == "__main__":
    code = main()
    if code:
        # Not sys.exit: a rank that fails must not wait in MPI_Finalize or in Horovod's shutdown for those that go on.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
