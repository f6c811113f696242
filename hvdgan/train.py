"""Trains a GAN: python -m hvdgan.train, by itself or under horovodrun, mpirun or srun."""

from hvdgan.cli import start

start.begin(__name__)

from collections.abc import Sequence

from hvdgan.cli.app import at_once, leave, main_of
from hvdgan.training.command import Command, answer, parse

at_once(__name__, answer)

import tensorflow as tf

from hvdgan.distributed import joining
from hvdgan.distributed.collective_errors import failures_in_words
from hvdgan.distributed.devices import everyones_devices, limit_memory
from hvdgan.distributed.liveness.heartbeat import Heartbeat
from hvdgan.distributed.ranks import Ranks
from hvdgan.training import session
from hvdgan.training.page import Page
from hvdgan.training.resume_point import Commits
from hvdgan.training.run import build, folder_of
from hvdgan.training.stopping import STOPPED, Stopping
from hvdgan.training.summary import describe

_INTERRUPTED = "interrupted; with --resume auto the same command resumes from the last checkpoint"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, build the run, and train it or describe it.

    Args:
        arguments: words of the command line; None: those of this process.

    Returns:
        The exit code: 0 done, 75 stopped on request and saved; after an error that of Main.
    """
    return main_of(interrupted=_INTERRUPTED)(_main)(arguments)


def _main(arguments: list[str]) -> int:
    # The devices are claimed first, because the command line depends on the recipe, whose file may run operations.
    joining.claim()
    command = parse(arguments)
    if command is None:
        return 0  # the help or the settings were asked for, and are printed
    limit_memory(command.config.gpu_memory_limit, shared=command.config.share_gpu)
    if command.config.deterministic:
        tf.config.experimental.enable_op_determinism()
    with Page(command.config.report) as page:
        reached = _elastic(command, page) if joining.is_elastic() and not command.dry_run else _work(command, page)
    return 0 if reached else STOPPED


def _elastic(command: Command, page: Page) -> bool:
    from hvdgan.training import elastic  # only elastic runs need it

    return elastic.train(command, page)


def _work(command: Command, page: Page) -> bool:
    with failures_in_words(lambda: None):
        ranks = joining.start(command.expect_size, share_gpu=command.config.share_gpu)
    with session.watch(command, ranks) as heart, failures_in_words(heart.explanation):
        reached = _describe(command, ranks) if command.dry_run else _train(command, ranks, heart, page)
        ranks.shutdown()
    return reached


def _describe(command: Command, ranks: Ranks) -> bool:
    run = build(command.config, command.recipe, command.options, ranks)
    devices = everyones_devices(ranks)
    if ranks.is_root:
        print(describe(run, devices))
    return True


def _train(command: Command, ranks: Ranks, heart: Heartbeat, page: Page) -> bool:
    # Requests to stop are noticed from before the build on.
    with Stopping(ranks, folder_of(command.config) / "stop", command.time_budget) as stopping:
        commits = Commits()
        run, resume_point = session.build_and_restore(command, ranks, commits)
        return session.train(run, resume_point, heart, stopping, commits, page)


if __name__ == "__main__":
    if code := main():
        leave(code)
