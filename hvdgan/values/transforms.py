"""The steps of a value map: each is a function of one channel's numbers with an exact inverse.

They compute with the functions of `numpy`, or with those of `keras.ops`, which have the same names.
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from hvdgan.errors import UserError


@dataclasses.dataclass(frozen=True)
class Step(abc.ABC):
    """One step. `forward` and `inverse` take numbers (..., C) and return the same shape; `ops` is the library."""

    form: ClassVar[str]
    """what --values takes, for messages; it begins with the step's name"""
    counts: ClassVar[Sequence[int]] = (0,)
    """how many numbers may follow the name"""

    @abc.abstractmethod
    def forward(self, values: Any, ops: Any) -> Any: ...

    @abc.abstractmethod
    def inverse(self, values: Any, ops: Any) -> Any: ...

    def is_valid(self) -> bool:
        """Whether the numbers of the step define it."""
        return True

    @property
    def name(self) -> str:
        """The name of the step in --values and in checkpoints."""
        return next(name for name, kind in _KINDS.items() if kind is type(self))

    def arguments(self) -> list[Any]:
        """What of() makes the same step from, as JSON types."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return [list(value) if isinstance(value, tuple) else value for value in values]

    def __str__(self) -> str:
        given = [
            getattr(self, each.name) for each in dataclasses.fields(self) if getattr(self, each.name) != each.default
        ]
        return f"{self.name}:{','.join(map(_exact, given))}" if given else self.name


@dataclasses.dataclass(frozen=True)
class Range(Step):
    """Maps [low, high] to [-1, 1] by a straight line; numbers outside are not clipped."""

    low: float
    high: float
    form: ClassVar[str] = "range:LOW,HIGH with LOW below HIGH, such as range:0,1"
    counts: ClassVar[Sequence[int]] = (2,)

    def forward(self, values: Any, ops: Any) -> Any:
        return (values - self.low) * (2.0 / (self.high - self.low)) - 1.0

    def inverse(self, values: Any, ops: Any) -> Any:
        return (values + 1.0) * (0.5 * (self.high - self.low)) + self.low

    def is_valid(self) -> bool:
        return self.low < self.high


@dataclasses.dataclass(frozen=True)
class Standard(Step):
    """Subtracts the mean of each channel and divides by its standard deviation.

    Args:
        means, deviations: one number for each channel; empty until they are computed.
    """

    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    form: ClassVar[str] = "standard"

    def forward(self, values: Any, ops: Any) -> Any:
        return (values - ops.array(self.means, dtype=values.dtype)) / ops.array(self.deviations, dtype=values.dtype)

    def inverse(self, values: Any, ops: Any) -> Any:
        return values * ops.array(self.deviations, dtype=values.dtype) + ops.array(self.means, dtype=values.dtype)

    def __str__(self) -> str:
        if not self.means:
            return "standard"
        return f"standard (mean {_listed(self.means)}; deviation {_listed(self.deviations)})"


@dataclasses.dataclass(frozen=True)
class Log1p(Step):
    """log(1 + x); defined above -1."""

    form: ClassVar[str] = "log1p"

    def forward(self, values: Any, ops: Any) -> Any:
        return ops.log1p(values)

    def inverse(self, values: Any, ops: Any) -> Any:
        return ops.expm1(values)


@dataclasses.dataclass(frozen=True)
class Log10(Step):
    """The decimal logarithm; defined above 0."""

    form: ClassVar[str] = "log10"

    def forward(self, values: Any, ops: Any) -> Any:
        return ops.log10(values)

    def inverse(self, values: Any, ops: Any) -> Any:
        return ops.power(10.0, values)


@dataclasses.dataclass(frozen=True)
class Sqrt(Step):
    """The square root; defined from 0 up."""

    form: ClassVar[str] = "sqrt"

    def forward(self, values: Any, ops: Any) -> Any:
        return ops.sqrt(values)

    def inverse(self, values: Any, ops: Any) -> Any:
        return values * values


@dataclasses.dataclass(frozen=True)
class Power(Step):
    """x ** exponent for x >= 0, and -|x| ** exponent below 0, so that the inverse is defined everywhere."""

    exponent: float
    form: ClassVar[str] = "power:EXPONENT with a number above 0, such as power:0.85"
    counts: ClassVar[Sequence[int]] = (1,)

    def forward(self, values: Any, ops: Any) -> Any:
        return ops.sign(values) * ops.power(ops.absolute(values), self.exponent)

    def inverse(self, values: Any, ops: Any) -> Any:
        return ops.sign(values) * ops.power(ops.absolute(values), 1.0 / self.exponent)

    def is_valid(self) -> bool:
        return self.exponent > 0


@dataclasses.dataclass(frozen=True)
class Asinh(Step):
    """asinh(x / scale): nearly x / scale below the scale, and a logarithm of either sign above it."""

    scale: float = 1.0
    form: ClassVar[str] = "asinh, or asinh:SCALE with a number above 0, such as asinh:0.01"
    counts: ClassVar[Sequence[int]] = (0, 1)

    def forward(self, values: Any, ops: Any) -> Any:
        return ops.arcsinh(values / self.scale)

    def inverse(self, values: Any, ops: Any) -> Any:
        return ops.sinh(values) * self.scale

    def is_valid(self) -> bool:
        return self.scale > 0


@dataclasses.dataclass(frozen=True)
class Logit(Step):
    """log(p / (1 - p)) of p = margin + (1 - 2 margin) x; defined between 0 and 1, with a margin also there.

    Reference: Dinh, Sohl-Dickstein and Bengio 2017, section 4.1 (the margin).
    """

    margin: float = 0.0
    form: ClassVar[str] = "logit, or logit:MARGIN with a number from 0 to below 0.5, such as logit:1e-6"
    counts: ClassVar[Sequence[int]] = (0, 1)

    def forward(self, values: Any, ops: Any) -> Any:
        factor = 1.0 - 2.0 * self.margin
        # 1 - x is exact near 1, where 1 - p would have lost its digits.
        return ops.log(values * factor + self.margin) - ops.log((1.0 - values) * factor + self.margin)

    def inverse(self, values: Any, ops: Any) -> Any:
        return (1.0 / (1.0 + ops.exp(-values)) - self.margin) / (1.0 - 2.0 * self.margin)

    def is_valid(self) -> bool:
        return 0 <= self.margin < 0.5


@dataclasses.dataclass(frozen=True)
class OneHot(Step):
    """A channel for each class: 1 for the class that a number (..., 1) names, and 0 else; NaN if it names none."""

    classes: float
    form: ClassVar[str] = "onehot:CLASSES with a whole number above 1, such as onehot:12"
    counts: ClassVar[Sequence[int]] = (1,)

    def forward(self, values: Any, ops: Any) -> Any:
        is_class, one = ops.equal(values, self._numbers(values, ops)), ops.ones_like(values)
        found = ops.where(is_class, one, 0.0 * one)
        return ops.where(ops.any(is_class, axis=-1, keepdims=True), found, math.nan * one)

    def inverse(self, values: Any, ops: Any) -> Any:
        return ops.take(self._numbers(values, ops), ops.argmax(values, axis=-1, keepdims=True))

    def is_valid(self) -> bool:
        return self.classes > 1 and self.classes == int(self.classes)

    def _numbers(self, values: Any, ops: Any) -> Any:
        return ops.arange(int(self.classes), dtype=values.dtype)


_KINDS: dict[str, type[Step]] = {
    "range": Range,
    "standard": Standard,
    "log1p": Log1p,
    "log10": Log10,
    "sqrt": Sqrt,
    "power": Power,
    "asinh": Asinh,
    "logit": Logit,
    "onehot": OneHot,
}
_EXPECTED = (
    "none, range:LOW,HIGH, standard, log1p, log10, sqrt, power:EXPONENT, asinh:SCALE, logit:MARGIN, or several joined "
    "by +"
)


def of(name: str, arguments: Sequence[Any]) -> Step:
    """Make a step again from its name and arguments()."""
    return _KINDS[name](*(tuple(each) if isinstance(each, list) else each for each in arguments))


def parse(text: str, flag: str) -> tuple[Step, ...]:
    """Read steps that are joined by +, such as log1p+standard."""
    if text == "none":
        return ()
    return tuple(_parse_one(part.strip(), flag) for part in text.split("+"))


def _parse_one(text: str, flag: str) -> Step:
    name, colon, rest = text.partition(":")
    if (kind := _KINDS.get(name)) is None:
        raise UserError(f"{flag}: {text!r} is no value map; expected {_EXPECTED}")
    try:
        numbers = [float(part) for part in rest.split(",")] if colon else []
    except ValueError:
        numbers = [math.nan]
    step = kind(*numbers) if len(numbers) in kind.counts and all(map(math.isfinite, numbers)) else None
    if step is None or not step.is_valid():
        raise UserError(f"{flag}: {text}: expected {kind.form}")
    return step


def _exact(value: float) -> str:
    """The shortest decimal number that is read as this one."""
    return repr(float(value)).removesuffix(".0").replace("e+", "e")  # + joins steps


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)
