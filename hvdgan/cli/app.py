"""A function as a command line, its parameters as the flags."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Dict

from hvdgan.cli.errors import UserError
from hvdgan.cli.exits import exit_code, refuse_more_processes


def run_app(
    command: Callable[..., Any],
    arguments: Sequence[str],
    *,
    name: str,
    help_text: str,
    saved: dict[str, Any] | None = None,
    source: str = "",
) -> Any:
    """Call a function with what a command line says; print the help and return None if that is what it asks for.

    Args:
        command: its parameters are the flags.
        arguments: without the program's name.
        name: of the module, such as "train".
        help_text: what --help says first.
        saved: values that the flags override.
        source: where `saved` is from, for error messages.

    Raises:
        UserError: a flag or value that cannot be; one line that names both.
    """
    app = App(
        name=f"python -m hvdgan.{name}",
        help=help_text,
        version_flags=(),
        help_format="plaintext",
        default_parameter=Parameter(negative=()),
        config=Dict({key: value for key, value in (saved or {}).items() if value is not None}, source=source),
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,  # hvdgan.cli.exits says what Ctrl-C means
    )
    app.default(command)
    try:
        return app(list(arguments))
    except CycloptsError as error:
        raise UserError(" ".join(str(error).split())) from error


def run_alone(command: Callable[..., Any], arguments: Sequence[str] | None, *, name: str, help_text: str) -> int:
    """The whole of a command that is one process.

    Args:
        command: its parameters are the flags.
        arguments: of the command line; None: the process's own.
        name: of the module, such as "sample".
        help_text: what --help says first.

    Returns:
        The exit code: 0 done, 1 failed, 2 a mistake of the user's, 130 interrupted.
    """

    def work() -> None:
        refuse_more_processes()
        run_app(command, sys.argv[1:] if arguments is None else arguments, name=name, help_text=help_text)

    return exit_code(work)
