"""How a command ends: one line and an exit code for whatever went wrong."""

import io
import os
import sys
import traceback
from collections.abc import Callable

from hvdgan.cli import start as lean
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.launcher import launched


def exit_code(work: Callable[[], int | None], *, interrupted: str = "interrupted") -> int:
    """Do the work of a command.

    Args:
        work: may raise anything; it may return an exit code.
        interrupted: what to say after Ctrl-C.

    Returns:
        The exit code: 0 done, 1 failed, 2 a mistake of the user's, 130 interrupted.
    """
    lean.imported()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: the name of a file need not be UTF-8
    try:
        return work() or 0
    except RunError as error:
        if os.environ.get("HVDGAN_TRACEBACK", "0") not in ("", "0"):
            _complain(traceback.format_exc())
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _complain(interrupted)
        return 130
    except Exception:
        _complain(traceback.format_exc())
        return 1


def refuse_more_processes() -> None:
    """Refuse a launcher that has started several processes of a command that is one: all would write the same files.

    Raises:
        UserError: there are more than one.
    """
    launcher, size, _ = launched()
    if size > 1:
        raise UserError(f"this command is one process, and {launcher} has started {size}; start it without")


def _complain(text: str) -> None:
    _, size, rank = launched()
    print(f"hvdgan: {f'rank {rank}: ' if size > 1 else ''}{text}", file=sys.stderr, flush=True)
