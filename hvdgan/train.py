"""Trains a GAN: python -m hvdgan.train, by itself or under horovodrun, mpirun or srun. In Python it is hvdgan.fit()."""

from hvdgan.cli import start

start.begin(__name__)
start.stop_when_asked(__name__)

from collections.abc import Sequence

from hvdgan.cli.app import at_once, leave, main_of
from hvdgan.training.command import answer, parse

at_once(__name__, answer)

from hvdgan.distributed import joining
from hvdgan.training.execution import execute
from hvdgan.training.stopping import STOPPED

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
    reached = execute(command, is_process=True)
    return 0 if reached is None or reached.is_finished else STOPPED


if __name__ == "__main__":
    if code := main():
        leave(code)
