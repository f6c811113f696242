"""The steps of a value map: each is a function of one channel's numbers with an exact inverse."""

import contextlib
import dataclasses
import hashlib
import importlib
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from hvdgan.cli.errors import UserError, in_one_line

_TOLERANCE = 1e-4
_TRIED = np.linspace(0.0, 1.0, 11)
_LARGE = 10.0 ** np.arange(-3, 7)
_PROBES = (_TRIED, _LARGE, -_LARGE)
"""numbers of all magnitudes, by whose results an edited function is recognised; each array is tried on its own"""
_SAME = 1e-5
_SMALLEST = 1e-7
"""relative and absolute differences of two results that another machine, or float32 on a GPU, may make"""


@dataclasses.dataclass(frozen=True)
class Operations:
    """The functions that steps are made of, of NumPy or of another library."""

    log1p: Callable[[Any], Any] = np.log1p
    expm1: Callable[[Any], Any] = np.expm1
    sign: Callable[[Any], Any] = np.sign
    absolute: Callable[[Any], Any] = np.abs
    power: Callable[[Any, float], Any] = np.power
    concatenate: Callable[[Sequence[Any]], Any] = lambda parts: np.concatenate(parts, axis=-1)
    constant: Callable[[Sequence[float], Any], Any] = lambda values, like: np.asarray(values, like.dtype)


NUMPY = Operations()


class Step(Protocol):
    """One step. `forward` and `inverse` take numbers (..., C) and return the same shape."""

    name: ClassVar[str]

    def forward(self, values: Any, ops: Operations) -> Any: ...

    def inverse(self, values: Any, ops: Operations) -> Any: ...

    def arguments(self) -> list[Any]:
        """What of() makes the same step from, as JSON types."""

    def __str__(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Range:
    """Maps [low, high] to [-1, 1] by a straight line; numbers outside are not clipped."""

    low: float
    high: float
    name: ClassVar[str] = "range"

    def forward(self, values: Any, ops: Operations) -> Any:
        return (values - self.low) * (2.0 / (self.high - self.low)) - 1.0

    def inverse(self, values: Any, ops: Operations) -> Any:
        return (values + 1.0) * (0.5 * (self.high - self.low)) + self.low

    def arguments(self) -> list[Any]:
        return [self.low, self.high]

    def __str__(self) -> str:
        return f"range:{_exact(self.low)},{_exact(self.high)}"


@dataclasses.dataclass(frozen=True)
class Standard:
    """Subtracts the mean of each channel and divides by its standard deviation.

    Args:
        means, deviations: one number for each channel; empty until they are computed.
    """

    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    name: ClassVar[str] = "standard"

    def forward(self, values: Any, ops: Operations) -> Any:
        return (values - ops.constant(self.means, values)) / ops.constant(self.deviations, values)

    def inverse(self, values: Any, ops: Operations) -> Any:
        return values * ops.constant(self.deviations, values) + ops.constant(self.means, values)

    def arguments(self) -> list[Any]:
        return [list(self.means), list(self.deviations)]

    def __str__(self) -> str:
        if not self.means:
            return "standard"
        return f"standard (mean {_listed(self.means)}; deviation {_listed(self.deviations)})"


@dataclasses.dataclass(frozen=True)
class Log1p:
    """log(1 + x); defined above -1."""

    name: ClassVar[str] = "log1p"

    def forward(self, values: Any, ops: Operations) -> Any:
        return ops.log1p(values)

    def inverse(self, values: Any, ops: Operations) -> Any:
        return ops.expm1(values)

    def arguments(self) -> list[Any]:
        return []

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Power:
    """x ** exponent for x >= 0, and -|x| ** exponent below 0, so that the inverse is defined everywhere."""

    exponent: float
    name: ClassVar[str] = "power"

    def forward(self, values: Any, ops: Operations) -> Any:
        return ops.sign(values) * ops.power(ops.absolute(values), self.exponent)

    def inverse(self, values: Any, ops: Operations) -> Any:
        return ops.sign(values) * ops.power(ops.absolute(values), 1.0 / self.exponent)

    def arguments(self) -> list[Any]:
        return [self.exponent]

    def __str__(self) -> str:
        return f"power:{_exact(self.exponent)}"


@dataclasses.dataclass(frozen=True)
class Own:
    """Two functions of the user's, each the inverse of the other, from an array to an array of the same shape.

    Args:
        module: name of their module.
        there, back: names of the functions.
        given: results() when the map was declared; None: a checkpoint of an older version does not have them.
    """

    module: str
    there: str
    back: str
    given: tuple[float | None, ...] | None = dataclasses.field(default=None, compare=False, repr=False)
    name: ClassVar[str] = "own"

    def forward(self, values: Any, ops: Operations) -> Any:
        return self._function(self.there)(values)

    def inverse(self, values: Any, ops: Operations) -> Any:
        return self._function(self.back)(values)

    def arguments(self) -> list[Any]:
        return [self.module, self.there, self.back, None if self.given is None else list(self.given)]

    def __str__(self) -> str:
        return f"{self.module}:{self.there},{self.back}"

    def digest(self) -> str:
        """A SHA-256 that differs once the functions do: of the file of their module, and of what they return."""
        digest, forward, inverse = hashlib.sha256(), self._function(self.there), self._function(self.back)
        # The user's code may raise anything for numbers that the data do not have.
        with contextlib.suppress(Exception), np.errstate(all="ignore"):
            there = np.asarray(forward(_TRIED.copy()))
            digest.update(there.tobytes() + np.asarray(inverse(there)).tobytes())
        file = getattr(sys.modules[self.module], "__file__", None)
        if file and os.path.isfile(file):
            digest.update(Path(file).read_bytes())
        return digest.hexdigest()

    def results(self) -> tuple[float | None, ...]:
        """What the functions return for numbers of all magnitudes, to nine digits; None where they cannot take one.

        Raises:
            UserError: the module cannot be loaded.
        """
        each = (_results_of(self._function(name)) for name in (self.there, self.back))
        return tuple(itertools.chain.from_iterable(each))

    def changed(self, now: Sequence[float | None] | None) -> str:
        """The first number for which the functions no longer return what they did, in words; "" if there is none.

        Args:
            now: results() of today; None: nothing is known.
        """
        numbers = np.concatenate(_PROBES).tolist()
        if self.given is None or now is None or not len(self.given) == len(now) == 2 * len(numbers):
            return ""
        names = [self.there] * len(numbers) + [self.back] * len(numbers)
        for name, number, before, after in zip(names, 2 * numbers, self.given, now, strict=True):
            if not _are_close(before, after):
                return f"{name}({number:g}) of {self.module} was {_shown(before)} and is {_shown(after)}"
        return ""

    def _function(self, name: str) -> Callable[[Any], Any]:
        # Python does not search the working folder for an installed command, as it does for python -m.
        if self.module not in sys.modules and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            function: Callable[[Any], Any] = getattr(importlib.import_module(self.module), name)
        except Exception as error:  # the user's code may raise anything
            raise UserError(
                f"value map {self}: {self.module} cannot be loaded: {type(error).__name__}: {in_one_line(error)}; "
                f"give the command in the folder of {self.module}.py, or name that folder in PYTHONPATH"
            ) from error
        return function


_KINDS: dict[str, Callable[..., Step]] = {
    "range": Range,
    "standard": lambda means, deviations: Standard(tuple(means), tuple(deviations)),
    "log1p": Log1p,
    "power": Power,
    "own": lambda module, there, back, given=None: Own(module, there, back, given and tuple(given)),
}
EXPECTED = (
    "none, range:LOW,HIGH, standard, log1p, power:EXPONENT, MODULE:FUNCTION,INVERSE of your own, or several joined by +"
)


def of(name: str, arguments: Sequence[Any]) -> Step:
    """Make a step again from its name and arguments()."""
    return _KINDS[name](*arguments)


def parse(text: str, flag: str) -> tuple[Step, ...]:
    """Read steps that are joined by +, such as log1p+standard.

    Args:
        text: steps; `none` alone gives no steps.
        flag: flag with its value, for error messages.

    Raises:
        UserError: a step is unknown, or its numbers are not possible.
    """
    if text == "none":
        return ()
    return tuple(_parse_one(part.strip(), flag) for part in text.split("+"))


def _parse_one(text: str, flag: str) -> Step:
    name, colon, rest = text.partition(":")
    if not colon and name in ("standard", "log1p"):
        return Standard() if name == "standard" else Log1p()
    if name == "range":
        numbers = _numbers(rest)
        if len(numbers) != 2 or not numbers[0] < numbers[1]:
            raise UserError(f"{flag}: {text}: expected range:LOW,HIGH with LOW below HIGH, such as range:0,1")
        return Range(*numbers)
    if name == "power":
        numbers = _numbers(rest)
        if len(numbers) != 1 or numbers[0] <= 0:
            raise UserError(f"{flag}: {text}: expected power:EXPONENT with a number above 0, such as power:0.85")
        return Power(numbers[0])
    functions = rest.split(",")
    if colon and len(functions) == 2 and all(each.strip().isidentifier() for each in functions):
        return _own(name, functions[0].strip(), functions[1].strip(), flag)
    raise UserError(f"{flag}: {text!r} is no value map; expected {EXPECTED}")


def _own(module: str, there: str, back: str, flag: str) -> Own:
    """The user's own functions, tried once on the numbers 0 to 1."""
    step = Own(module, there, back)
    try:
        again = np.asarray(step.inverse(step.forward(_TRIED.copy(), NUMPY), NUMPY))
    except UserError as error:
        raise UserError(f"{flag}: {error}") from error
    except Exception as error:  # the user's code may raise anything
        raise UserError(f"{flag}: {step}: {type(error).__name__}: {in_one_line(error)}") from error
    if again.shape != _TRIED.shape:
        raise UserError(f"{flag}: {step} changes the shape of an array from {_TRIED.shape} to {again.shape}")
    if not np.allclose(again, _TRIED, rtol=_TOLERANCE, atol=_TOLERANCE):
        worst = int(np.argmax(np.abs(again - _TRIED)))
        raise UserError(f"{flag}: {back} of {module} does not undo {there}: {_TRIED[worst]:g} became {again[worst]:g}")
    return dataclasses.replace(step, given=step.results())


def _numbers(text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def _exact(value: float) -> str:
    """The shortest decimal number that is read as this one."""
    return repr(float(value)).removesuffix(".0").replace("e+", "e")  # + joins steps


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def _results_of(function: Callable[[Any], Any]) -> Iterator[float | None]:
    """What a function returns for each of the probes."""
    for numbers in _PROBES:
        try:
            with np.errstate(all="ignore"):
                found = np.asarray(function(numbers.copy()), np.float64)
        except Exception:  # the user's code may raise anything for numbers that the data do not have
            found = np.array(np.nan)
        if found.shape != numbers.shape:
            found = np.full(numbers.shape, np.nan)
        yield from (float(f"{each:.9g}") if math.isfinite(each) else None for each in found.tolist())


def _are_close(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is after
    return math.isclose(before, after, rel_tol=_SAME, abs_tol=_SMALLEST)


def _shown(result: float | None) -> str:
    return "not finite" if result is None else f"{result:.9g}"
