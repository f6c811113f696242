"""The steps of a value map: each is a function of one channel's numbers with an exact inverse."""

import abc
import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hvdgan.errors import RunError, UserError, in_one_line
from hvdgan.settings.own_code import file_of, sha256_of

_TOLERANCE = 1e-4
_TRIED = np.linspace(0.0, 1.0, 11)


class FailedFunction(RunError):
    """A function of the user's own has raised an error for some numbers."""


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


@dataclasses.dataclass(frozen=True)
class Step(abc.ABC):
    """One step. `forward` and `inverse` take numbers (..., C) and return the same shape."""

    name: ClassVar[str]

    @abc.abstractmethod
    def forward(self, values: Any, ops: Operations) -> Any: ...

    @abc.abstractmethod
    def inverse(self, values: Any, ops: Operations) -> Any: ...

    def arguments(self) -> list[Any]:
        """What of() makes the same step from, as JSON types."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return [list(value) if isinstance(value, tuple) else value for value in values]

    def __str__(self) -> str:
        numbers = ",".join(map(_exact, self.arguments()))
        return f"{self.name}:{numbers}" if numbers else self.name


@dataclasses.dataclass(frozen=True)
class Range(Step):
    """Maps [low, high] to [-1, 1] by a straight line; numbers outside are not clipped."""

    low: float
    high: float
    name: ClassVar[str] = "range"

    def forward(self, values: Any, ops: Operations) -> Any:
        return (values - self.low) * (2.0 / (self.high - self.low)) - 1.0

    def inverse(self, values: Any, ops: Operations) -> Any:
        return (values + 1.0) * (0.5 * (self.high - self.low)) + self.low


@dataclasses.dataclass(frozen=True)
class Standard(Step):
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

    def __str__(self) -> str:
        if not self.means:
            return "standard"
        return f"standard (mean {_listed(self.means)}; deviation {_listed(self.deviations)})"


@dataclasses.dataclass(frozen=True)
class Log1p(Step):
    """log(1 + x); defined above -1."""

    name: ClassVar[str] = "log1p"

    def forward(self, values: Any, ops: Operations) -> Any:
        return ops.log1p(values)

    def inverse(self, values: Any, ops: Operations) -> Any:
        return ops.expm1(values)


@dataclasses.dataclass(frozen=True)
class Power(Step):
    """x ** exponent for x >= 0, and -|x| ** exponent below 0, so that the inverse is defined everywhere."""

    exponent: float
    name: ClassVar[str] = "power"

    def forward(self, values: Any, ops: Operations) -> Any:
        return ops.sign(values) * ops.power(ops.absolute(values), self.exponent)

    def inverse(self, values: Any, ops: Operations) -> Any:
        return ops.sign(values) * ops.power(ops.absolute(values), 1.0 / self.exponent)


@dataclasses.dataclass(frozen=True)
class CustomMap(Step):
    """Two functions of the user's, each the inverse of the other, from an array to an array of the same shape.

    The file of their module lies outside of the folders of installed packages, and `sha256` is its SHA-256 when the map
    was declared, in hex. The functions of another file are not called, so that a checkpoint cannot name code that its
    reader has not written.
    """

    module: str
    there: str
    back: str
    sha256: str = dataclasses.field(compare=False, repr=False)
    name: ClassVar[str] = "own"

    def forward(self, values: Any, ops: Operations) -> Any:
        return self._called(self.there, values)

    def inverse(self, values: Any, ops: Operations) -> Any:
        return self._called(self.back, values)

    def __str__(self) -> str:
        return f"{self.module}:{self.there},{self.back}"

    @property
    def file(self) -> Path | None:
        """The file of the module; None if there is none of the user's own."""
        return file_of(self.module)

    @property
    def has_changed(self) -> bool:
        """Whether the file is there, and another one than when the map was declared."""
        return self.file is not None and sha256_of(self.file) != self.sha256

    def _called(self, name: str, values: Any) -> Any:
        function = self._functions[name]
        try:
            return function(values)
        except Exception as error:  # the user's code may raise anything
            raise FailedFunction(f"{name} of {self.module}: {type(error).__name__}: {in_one_line(error)}") from error

    @functools.cached_property
    def _functions(self) -> dict[str, Callable[[Any], Any]]:
        """Both functions by their names."""
        if self.file is None:
            raise UserError(
                f"value map {self}: there is no {self.module}.py of your own; give the command in its folder"
            )
        if self.has_changed:
            raise UserError(f"value map {self}: {self.file} has changed since the map was declared")
        try:
            module = importlib.import_module(self.module)
            found = {name: getattr(module, name) for name in (self.there, self.back)}
        except Exception as error:  # the user's code may raise anything
            raise UserError(f"value map {self}: {self.file}: {type(error).__name__}: {in_one_line(error)}") from error
        for name, function in found.items():
            if getattr(function, "__module__", None) != self.module:
                raise UserError(f"value map {self}: {name} is not defined in {self.file}; define it there")
        return found


_KINDS: dict[str, Callable[..., Step]] = {
    "range": Range,
    "standard": lambda means, deviations: Standard(tuple(means), tuple(deviations)),
    "log1p": Log1p,
    "power": Power,
    "own": CustomMap,
}
EXPECTED = (
    "none, range:LOW,HIGH, standard, log1p, power:EXPONENT, MODULE:FUNCTION,INVERSE of your own, or several joined by +"
)


def of(name: str, arguments: Sequence[Any]) -> Step:
    """Make a step again from its name and arguments()."""
    return _KINDS[name](*arguments)


def parse(text: str, flag: str) -> tuple[Step, ...]:
    """Read steps that are joined by +, such as log1p+standard."""
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


def _own(module: str, there: str, back: str, flag: str) -> CustomMap:
    """The user's own functions, tried once on the numbers 0 to 1."""
    file = file_of(module)
    step = CustomMap(module, there, back, "" if file is None else sha256_of(file))
    try:
        again = np.asarray(step.inverse(step.forward(_TRIED.copy(), NUMPY), NUMPY))
    except RunError as error:
        raise UserError(f"{flag}: {error}") from error
    if again.shape != _TRIED.shape:
        raise UserError(f"{flag}: {step} changes the shape of an array from {_TRIED.shape} to {again.shape}")
    if not np.allclose(again, _TRIED, rtol=_TOLERANCE, atol=_TOLERANCE):
        worst = int(np.argmax(np.abs(again - _TRIED)))
        raise UserError(f"{flag}: {back} of {module} does not undo {there}: {_TRIED[worst]:g} became {again[worst]:g}")
    return step


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
