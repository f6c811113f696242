"""Halves the time that a command takes to import its libraries and to end, and drops messages of TensorFlow's start.

Keras imports scikit-learn and matplotlib if they are installed, for wrappers and galleries that no command needs: two
seconds of CPU in every rank, and thousands of small files, often from a network file system. Python looks for garbage
again and again among the modules that are imported, and once more when it ends, and modules are never garbage.

TensorFlow 2.21 prints what it has compiled in before it reads TF_CPP_MIN_LOG_LEVEL: four lines of every rank. They are
taken out of stderr while it is imported, unless the variable is 0; all other lines come through.

TensorFlow uses oneDNN's kernels by default only on x86 processors that have VNNI or AMX. On others, many of AMD's, its
own take up to half as long again (docs/performance.md), and ranks on hosts of both kinds would compute differently.

TensorFlow sets HDF5_PLUGIN_PATH to `disable` before it imports h5py, so that no plugin is loaded from a default folder.
A folder that the user names holds the filters that the data need, such as Blosc, so the value is kept.

A signal that asks for a stop while all this is imported would end the process without a word.
"""

import contextlib
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any

OPTIONAL = frozenset({"matplotlib", "sklearn"})
_NEWS = re.compile(rb"before absl::InitializeLog\(\) is called|oneDNN custom operations are on")
"""what TensorFlow 2.21 prints before it reads TF_CPP_MIN_LOG_LEVEL"""
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_collects_again = False


def begin(module: str) -> None:
    """Leave the optional libraries out of Keras, and stop looking for garbage; the first statement of a command.

    A recipe that imports these libraries itself still gets them. Nothing changes in other people's programs: `module`
    is "__main__" only if Python was started with this command.
    """
    global _collects_again
    if module != "__main__":
        return
    _open_closed_streams()
    os.environ["MPLBACKEND"] = "agg"  # no command shows a window, whatever a recipe imports
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's warnings and errors, not its news
    if os.uname().machine == "x86_64":
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if _NotForKeras not in sys.meta_path:  # hvdgan.__main__ begins a second time, as the command that it is asked for
        sys.meta_path[:0] = [_NotForKeras, _QuietTensorFlow]
        _collects_again = gc.isenabled()
        gc.disable()
    sys.excepthook = _say_what_is_missing


def stop_when_asked(module: str) -> None:
    """End with a line when a signal asks for it, until a run takes the signals to save first; after begin()."""
    if module == "__main__":
        for number in _STOPS:
            signal.signal(number, _stop)


def _stop(number: int, _: object) -> None:
    from hvdgan.launching.launched import launched, stopped_early

    if launched()[2] == 0:
        with contextlib.suppress(OSError):
            os.write(2, f"{stopped_early(number)}\n".encode())
    # 75, so that a job returns to the queue; 130 as of any interrupted command.
    os._exit(130 if number == signal.SIGINT else 75)


def imported() -> None:
    """Look for garbage again, except among what is imported now. Without begin() it does nothing."""
    global _collects_again
    if _collects_again:
        gc.freeze()
        gc.enable()
    _collects_again = False
    if sys.excepthook is _say_what_is_missing:
        sys.excepthook = sys.__excepthook__


def _open_closed_streams() -> None:
    """Read from and write to nowhere where a standard stream is closed, as by `2>&-`.

    Otherwise the next file that is opened gets its number, and with it what libraries write to standard error.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, mode, errors="backslashreplace"))


def what_is_missing(error: ModuleNotFoundError) -> str:
    """Name the package that is not installed, and what installs it; TensorFlow has several names, for pip."""
    missing = "TensorFlow" if error.name == "tensorflow" else error.name
    return (
        f"{missing} is not installed for this Python; pip install 'hvdgan[cpu]', or 'hvdgan[gpu]', or activate the "
        "environment that has it"
    )


def _say_what_is_missing(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End with one line if a package is missing."""
    if not (isinstance(error, ModuleNotFoundError) and (error.name or "").isidentifier()):
        sys.__excepthook__(kind, error, trace)
        return
    print(f"hvdgan: {what_is_missing(error)}", file=sys.stderr, flush=True)
    os._exit(2)


class _NotForKeras:
    """A finder, first in line, that hides these packages while Keras is being imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name in OPTIONAL and _is_being_imported("keras"):
            raise ModuleNotFoundError(f"hvdgan leaves {name} out of Keras", name=name)


class _QuietTensorFlow:
    """A finder that lets TensorFlow be imported as usual, but for its news and for what it does to HDF5's plugins."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(_QuietTensorFlow)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _QuietLoader(spec.loader)
        return spec


class _QuietLoader(importlib.abc.Loader):
    """Executes a module by its own loader, which is the module's again afterwards."""

    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self.plain.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self.plain
        is_quiet = os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0"
        with _users_plugins(), _without_news() if is_quiet else contextlib.nullcontext():
            self.plain.exec_module(module)


@contextlib.contextmanager
def _users_plugins() -> Iterator[None]:
    """Keep the folder of HDF5's plugins that the user has named: the library reads it when h5py is imported."""
    given = os.environ.get("HDF5_PLUGIN_PATH")
    if given is not None:
        importlib.import_module("h5py")
    try:
        yield
    finally:
        os.environ.pop("HDF5_PLUGIN_PATH", None)
        if given is not None:
            os.environ["HDF5_PLUGIN_PATH"] = given


@contextlib.contextmanager
def _without_news() -> Iterator[None]:
    """Send stderr through a child process that drops these lines; it writes all others even if this process crashes."""
    sys.stderr.flush()
    reader, writer = os.pipe()
    stderr = os.dup(2)
    child = os.fork()
    if child == 0:
        os.close(writer)
        _copy_without_news(reader, stderr)
    os.dup2(writer, 2)
    for each in (reader, writer):
        os.close(each)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        os.waitpid(child, 0)


def _copy_without_news(reader: int, stderr: int) -> None:
    try:
        for number in _STOPS:
            signal.signal(number, signal.SIG_IGN)  # they are for the command
        with os.fdopen(reader, "rb") as lines, os.fdopen(stderr, "wb", buffering=0) as out:
            for line in lines:
                if not _NEWS.search(line):
                    out.write(line)
    finally:
        os._exit(0)


def _is_being_imported(name: str) -> bool:
    # `_initializing` is private to Python's import; without it Keras imports what it likes, and only takes longer.
    # tests/cli/test_start.py guards it.
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False)
