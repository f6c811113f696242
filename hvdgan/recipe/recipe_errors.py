"""Reports a mistake in a user's recipe in one line: the recipe, the place in the file, and what to write instead.

The user's code is always called by call(), and its results are checked where they are used; both raise a Mistake. of()
surrounds the work with one recipe and makes the line. A mistake in a recipe of hvdgan is a bug, and keeps its
traceback. HVDGAN_TRACEBACK=1 prints the traceback in any case (hvdgan.cli.app).
"""

import contextlib
import importlib.util
import inspect
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hvdgan.errors import RunError, UserError
from hvdgan.launching.launched import launched
from hvdgan.settings.own_code import is_installed

Place = tuple[str, int]
"""a file and a line of it"""

_HVDGAN = __package__.partition(".")[0]
_LONGEST = 300
_TRACED = (
    "a step is traced once, before its tensors have values; use tf operations (tf.where or tf.cond for an if), and "
    "return tensors to report them"
)
_SLICE = (
    "a rank has its slice of the batch: take the number of samples from a tensor of the batch, and draw noise in draw()"
)


class Mistake(UserError):
    """A mistake in a recipe; of() adds the recipe's name, and the line of `at` if the user's code has not raised it."""

    def __init__(self, text: str, at: Any = None) -> None:
        super().__init__(text)
        self.at = at


def check(fits: Any, text: str, at: Any = None) -> None:
    """Raise a Mistake with this text if something does not fit."""
    if not fits:
        raise Mistake(text, at)


def check_unique(kind: str, names: Sequence[str]) -> None:
    """Refuse names of which two are equal, such as those of stages."""
    twice = sorted({name for name in names if names.count(name) > 1})
    check(not twice, f"{kind} {', '.join(twice)} is named twice; every name must be there once")


def call(function: Callable[..., Any], *arguments: Any, what: str, wanted: str = "") -> Any:
    """Call the user's code; whatever it raises but a RunError, which is one line already, becomes a Mistake.

    `what` names the function, as in "stage both, update judge: the loss". `wanted` is advice for a call that does not
    reach its code, such as "it must take (self, options, data)".
    """
    try:
        return function(*arguments)
    except RunError:
        raise
    except (Exception, SystemExit) as error:
        reached = error.__traceback__ is not None and error.__traceback__.tb_next is not None
        at = vars(function).get("__init__", function) if isinstance(function, type) else function
        raise Mistake(f"{what} fails: {_said(error, '' if reached else wanted)}", at) from error


@contextlib.contextmanager
def of(recipe: Any) -> Iterator[None]:
    """Turn a Mistake in the block into a UserError of one line that names the recipe, or its class, and the place."""
    kind = recipe if isinstance(recipe, type) else type(recipe)
    with of_module(f"recipe {kind.__name__}", kind.__module__, at=kind):
        yield


@contextlib.contextmanager
def of_module(who: str, module: str, at: Any = None) -> Iterator[None]:
    """Do the same for a recipe whose class may not be known yet; `who` are the first words of the line."""
    try:
        yield
    except Mistake as mistake:
        cause, home, own = mistake.__cause__, home_of(module), module.partition(".")[0] == _HVDGAN
        line = _line_of_error(cause or mistake, home)
        if cause is not None and (own or (line is None and _is_machinery(mistake.at))):
            raise cause from cause.__cause__
        if own:
            raise  # a recipe of hvdgan refuses what the user asked for
        places = (line, *(_definition(each) for each in (mistake.at, at) if each is not None))
        place = next((place for place in places if place and is_users(place[0], home)), None)
        raise UserError(f"{who}{f' ({_shown(place)})' if place else ''}: {mistake}") from (cause or mistake)


def in_graph(error: Exception, recipe: Any, updates: Iterable[tuple[str, str]]) -> UserError | None:
    """Describe an operation that has failed in a step, if a line of the user's recipe has made it.

    TensorFlow's error names the operation, after its stage and update, the lines that made it, and the reason.
    """
    kind, text = type(recipe), str(error)
    own = kind.__module__.partition(".")[0] == _HVDGAN
    place = None if own else _in_text(text, home_of(kind.__module__))
    said = re.findall(r"([^\n]+)\n\s*\[\[\{\{node ", text)
    if place is None or not said:
        return None
    where = next((f"stage {s}, update {u}: " for s, u in updates if f"{{{{node {s}/{u}/" in text), "")
    return UserError(
        f"recipe {kind.__name__} ({_shown(place)}): {where}{type(error).__name__}: {_short(said[-1])}; check "
        "the shapes and values that this operation receives"
    )


def described(value: Any) -> str:
    """Describe a wrong value in a few words."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape = "of unknown shape" if getattr(value.shape, "rank", 0) is None else tuple(value.shape)
        return f"{getattr(value.dtype, 'name', value.dtype)} {shape}"
    if isinstance(value, tuple | list | dict | set):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def attribute(kind: type, name: str) -> Place | None:
    """Find the line where a class, or one that it inherits from, sets an attribute."""
    owner = next((each for each in kind.__mro__ if name in each.__dict__), kind)
    try:
        lines, first = inspect.getsourcelines(owner)
    except (OSError, TypeError):
        return None
    found = (number for number, line in enumerate(lines) if re.match(rf"\s+(class )?{re.escape(name)}\s*[:=(]", line))
    return inspect.getfile(owner), first + next(found, 0)


def _said(error: BaseException, wanted: str) -> str:
    """Describe an exception in one line, with advice."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).partition("\n\nArguments received by")[0]
    if isinstance(error, SyntaxError):
        text = f"{error.msg}: {error.text.strip()}" if error.text else str(error.msg)
    elif "in user code:" in text:  # the form in which a tf.function of the user reports it
        text = text.strip().splitlines()[-1].strip().removeprefix(f"{type(error).__name__}: ")
    if "singleton tf.Variables" in text:
        text, wanted = "it makes weights, which nothing would train", "make the layer in networks(), and return it"
    of = getattr(error, "obj", None) if isinstance(error, AttributeError) else None
    if isinstance(of, ModuleType) and of.__name__.startswith(_HVDGAN):
        functions = (name for name, each in vars(of).items() if inspect.isfunction(each) and not name.startswith("_"))
        text += f"; it has {', '.join(sorted(functions))}"
    if "Dimensions must be equal" in text and launched()[1] > 1:
        wanted = wanted or _SLICE
    said = f"{type(error).__name__}: {_short(text)}" if text else type(error).__name__
    if "symbolic" in text.lower() or "no attribute 'numpy'" in text:
        return f"{_TRACED} ({said})"  # TensorFlow's own words do not tell a beginner what to do
    return f"{said.removesuffix('.')}; {wanted}" if wanted else said


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."


def _line_of_error(error: BaseException, home: str | None) -> Place | None:
    """Find the innermost line of the user that has led to an error."""
    if isinstance(error, SyntaxError) and error.filename and is_users(error.filename, home):
        return error.filename, error.lineno or 1
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(frame.f_code.co_filename, line) for frame, line in frames if is_users(frame.f_code.co_filename, home)]
    return lines[-1] if lines else _in_text(str(error), home)


def _is_machinery(function: Any) -> bool:
    """Return whether a function belongs to hvdgan, but not to a recipe that the user's may inherit from."""
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] == _HVDGAN and not module.startswith(f"{_HVDGAN}.recipe")


def _in_text(text: str, home: str | None) -> Place | None:
    """Find the last of the user's lines in a text with lines of a traceback."""
    named = [(file, int(line)) for file, line in re.findall(r'File "([^"\n]+)", line (\d+)', text)]
    return next((place for place in reversed(named) if is_users(place[0], home)), None)


def _definition(at: Any) -> Place | None:
    """Find the line that defines a function, a class or the class of an instance; a Place is one already."""
    if isinstance(at, tuple):
        return at
    at = inspect.unwrap(getattr(at, "func", getattr(at, "python_function", at)))
    at = at if isinstance(at, type) or hasattr(at, "__code__") else type(at)
    try:
        return inspect.getfile(at), inspect.getsourcelines(at)[1]
    except (OSError, TypeError):
        return None


def home_of(module: str) -> str | None:
    """Find the file of a module, or the folder of its package, in the working folder or installed."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    origin = (spec and spec.origin) or ""
    return os.path.realpath(origin.removesuffix("/__init__.py")) if origin else None


def is_users(file: str, home: str | None) -> bool:
    """Return whether a file is the user's: in the recipe's package, or in no library."""
    path = os.path.realpath(file)
    if file.startswith("<") or os.path.basename(path).startswith("__autograph_generated"):
        return False
    if home and (path == home or path.startswith(home + os.sep)):
        return True
    return not is_installed(Path(path))


def _shown(place: Place) -> str:
    """Describe a place; the file is relative to the working folder if it is below it, else a name."""
    below = os.path.relpath(place[0])
    return f"{os.path.basename(place[0]) if below.startswith(os.pardir) else below}, line {place[1]}"
