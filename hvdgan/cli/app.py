"""How a command begins and ends: its flags are the parameters of a function, its mistakes one line and an exit code."""

import contextlib
import functools
import io
import os
import re
import select
import sys
import textwrap
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from hvdgan.cli import start
from hvdgan.errors import RankFailed, RunError, UserError, in_one_line
from hvdgan.launching.launched import launched

if TYPE_CHECKING:
    from cyclopts import App


class TolerantStderr:
    """The stderr of a command: what cannot be written is lost, because a full disk or a lost terminal ends no work."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.failure: OSError | None = None
        """the last error in writing"""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, or lose it."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or lose it."""
        self._attempt(self._stream.flush)

    def _attempt(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except OSError as error:
            self.failure = error


class Main(Protocol):
    """The main() of a command."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int: ...


def main_of(*, interrupted: str = "interrupted") -> Callable[[Callable[[list[str]], int | None]], Main]:
    """Make the main() of a command from a function of the command line's words; `interrupted`: said after Ctrl-C."""

    def decorate(work: Callable[[list[str]], int | None]) -> Main:
        def main(arguments: Sequence[str] | None = None) -> int:
            words = list(sys.argv[1:] if arguments is None else arguments)
            return exit_code(lambda: work(words), interrupted=interrupted)

        return main

    return decorate


def command(
    *, name: str, help_text: str, one_process: bool = True, first: Callable[[Path, Any], None] | None = None
) -> Callable[[Callable[..., int | None]], Main]:
    """Make the main() of the command `name` from a function whose parameters are the flags; it may raise anything.

    `one_process` refuses a launcher that has started several processes: all would write the same files. `first` may
    refuse the run folder and the flags: if Python was started with this command, it is called before the module imports
    what stands below the command, as help is printed and wrong words are refused.
    """

    def decorate(function: Callable[..., int | None]) -> Main:
        def run(words: list[str], work: Callable[..., Any]) -> Any:
            if one_process:
                refuse_more_processes()
            return run_app(work, words, name=name, help_text=help_text)

        if first is not None:

            @functools.wraps(function)
            def is_possible(run_dir: Path, /, *, request: Any = None) -> bool:
                first(run_dir, request)
                return True

            at_once(function.__module__, lambda words: not run(words, is_possible))
        return main_of()(lambda words: run(words, function))

    return decorate


class HelpPage:
    """The help of a command: flags in one column, what they mean in the other; a group that is shown whole has a title.

    Paragraphs of the text that begin with a space are printed as they are.
    """

    _FLAGS = 23

    def __init__(self, text: str, shown: Collection[str] | None) -> None:
        self._text, self._shown = text, None if shown is None else {*shown}
        self._is_titled = False  # a part of a group follows others without a title

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        """Print the first line."""
        self._print(console, f"Usage: {usage}".strip())

    def render_description(self, console: Any, options: Any, description: Any) -> None:
        """Print what the command does."""
        for paragraph in self._text.split("\n\n"):
            self._print(console, "", *([paragraph] if paragraph.startswith(" ") else textwrap.wrap(paragraph, 80)))
        if self._shown is not None:
            self._print(console, "")

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        """Print a group of flags, one below the other."""
        entries = [e for e in panel.entries if self._shown is None or self._shown & {*e.positive_names}]
        if panel.format == "parameter" and entries:
            is_whole = len(entries) == len(panel.entries)
            title = ["", f"{panel.title if is_whole else 'Others'}:"] if is_whole or self._is_titled else []
            self._is_titled = is_whole
            self._print(console, *title, *(line for each in entries for line in self._lines(each)))

    def _lines(self, entry: Any) -> list[str]:
        label = getattr(entry, "positional_label", None)  # not before cyclopts 5
        names = " ".join(filter(None, [label, *entry.positive_names]))
        words = str(getattr(entry.description, "primary_renderable", "")).split()
        if any(choice not in " ".join(words) for choice in entry.choices or ()):
            words.append(f"[{', '.join(entry.choices)}]")
        default = re.sub(r"^\(|,?\)$|'", "", str(entry.default))  # words, and not a tuple of Python
        words += [] if default in ("None", "False", "") else [f"[default: {default}]"]
        lines = textwrap.wrap(" ".join(words), 80 - self._FLAGS, break_on_hyphens=False) or [""]
        first = [f"  {names}"] if len(names) + 3 > self._FLAGS else [f"  {names}".ljust(self._FLAGS) + lines.pop(0)]
        return first + [" " * self._FLAGS + line for line in lines]

    @staticmethod
    def _print(console: Any, *lines: str) -> None:
        console.print("\n".join(line.rstrip() for line in lines), markup=False, highlight=False, soft_wrap=True)


def app_of(
    command: Callable[..., Any],
    *,
    name: str,
    help_text: str,
    saved: Mapping[str, Any] | None = None,
    source: str = "",
    shown: Collection[str] | None = None,
    usage: str | None = None,
) -> "App":
    """Make the parser of a function whose parameters are the flags.

    Flags override the values `saved`, which come from `source`. --help has the flags `shown`, or all, below
    the line `usage`, or one with the names of the parameters.
    """
    # Here, since the commands that start ranks need nothing but the standard library.
    from cyclopts import App, Parameter
    from cyclopts.config import Dict

    app = App(
        name=f"hvdgan {name}",
        usage=usage,
        version_flags=(),
        help_format="plaintext",
        help_formatter=HelpPage(help_text, shown),
        default_parameter=Parameter(negative_iterable=()),
        config=Dict({key: value for key, value in (saved or {}).items() if value is not None}, source=source),
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,  # exit_code() says what Ctrl-C means
    )
    app.default(command)
    return app


def run_app(
    command: Callable[..., Any], arguments: Sequence[str], *, instead: Mapping[str, str] | None = None, **app: Any
) -> Any:
    """Call a function with the values of a command line; or print the help, if it asks for that, and return None.

    `instead` has answers to flags of other programs; the other arguments are those of app_of().
    """
    from cyclopts.exceptions import CycloptsError, UnknownOptionError

    try:
        return app_of(command, **app)(list(arguments))
    except UnknownOptionError as error:
        # A setting of a file has its name in brackets.
        flag = "--" + (error.token.keyword or error.token.value).partition("=")[0].strip("-[]")
        known = (instead or {}).get(flag)
        raise UserError(f"{flag}: no flag of hvdgan {app['name']}; {known}" if known else in_one_line(error)) from error
    except CycloptsError as error:
        raise UserError(in_one_line(error)) from error


def at_once(module: str, answer: Callable[[list[str]], object]) -> None:
    """End a command before it imports TensorFlow, if answer() of its words is true, or refuses them."""
    answers: list[object] = []
    if module == "__main__":
        code = exit_code(lambda: answers.append(answer(sys.argv[1:])), imported=False)
        if code or answers[0]:
            sys.exit(code)


def exit_code(work: Callable[[], int | None], *, interrupted: str = "interrupted", imported: bool = True) -> int:
    """Do the work of a command, and turn its errors into one line and an exit code.

    0: done, 1: failed, 2: the user's mistake, 130: interrupted, 141: the output is no longer read. The work may return
    another one. `imported`: whether the command has imported all that it needs.
    """
    if imported:
        start.imported()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # like stderr: the name of a file need not be UTF-8
    is_tolerant = sys.stderr is None or isinstance(sys.stderr, TolerantStderr)
    with contextlib.redirect_stderr(sys.stderr if is_tolerant else TolerantStderr(sys.stderr)):
        try:
            code = work() or 0
            sys.stdout.flush()
            return code
        except RunError as error:
            is_unknown = isinstance(error, RankFailed) and error.__cause__ is not None
            if is_unknown or os.environ.get("HVDGAN_TRACEBACK", "0") not in ("", "0"):
                _complain(traceback.format_exc())
            _complain(str(error))
            return error.exit_code
        except KeyboardInterrupt:
            _complain(interrupted)
            return 130
        except Exception as error:
            if isinstance(error, BrokenPipeError) and _reader_is_gone():
                return 141
            _complain(traceback.format_exc())
            return 1


def _reader_is_gone() -> bool:
    """Whether nobody reads stdout any more, as after `| head`; what is left of the output then goes nowhere."""
    stdout = sys.stdout.fileno()
    pipe = select.poll()
    pipe.register(stdout, 0)
    gone = any(event & select.POLLERR for _, event in pipe.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
    return gone


def leave(code: int) -> NoReturn:
    """End this process at once with an exit code.

    Unlike sys.exit(), it does not wait for the other ranks in MPI_Finalize or in Horovod's shutdown.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def refuse_more_processes() -> None:
    """Refuse several processes of a command that is one process: all would write the same files."""
    launcher, size, _ = launched()
    if size > 1:
        raise UserError(f"this command is one process, and {launcher} has started {size}; start it without {launcher}")


def _complain(text: str) -> None:
    _, size, rank = launched()
    print(f"hvdgan: {f'rank {rank}: ' if size > 1 else ''}{text}", file=sys.stderr, flush=True)
