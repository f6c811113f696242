"""Types of settings and options, with their limits and the way they are read from the command line."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from cyclopts import Parameter, Token
from cyclopts.validators import Number


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedRecipe:
    """The flag of each command that loads the recipe of a run."""

    recipe: str | None = None
    """recipe, needed if its file is not here, has changed, or is installed; default: that of the run"""


def _whole(_: type, tokens: Sequence[Token]) -> int:
    """Read a whole number; cyclopts would round 1.5 to 2."""
    text = tokens[0].value
    if not text.removeprefix("-").isdecimal():
        raise ValueError(f'"{text}" is not a whole number.')
    return int(text)


def read_kinds(_: type, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Read names that are separated by commas; `none` gives an empty tuple."""
    named = [name.strip() for token in tokens for name in token.value.split(",")]
    possible = get_args(Kind)
    if named in (["none"], [""]):  # cyclopts reads an empty list of a saved config.json as an empty word
        return ()
    if unknown := [name for name in named if name not in possible]:
        raise ValueError(f'"{unknown[0]}" is not one of {", ".join(possible)}.')
    return tuple(kind for kind in possible if kind in named)


def _lengths(_: type, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Read whole numbers above 0 that are separated by commas or by x."""
    if len(tokens) > 1 and tokens[0].source == "cli":  # a list of a saved config.json has a token for each length
        raise ValueError(f"{tokens[0].keyword} specified multiple times: {', '.join(token.value for token in tokens)}.")
    parts = [part.strip() for token in tokens for part in token.value.replace("x", ",").split(",")]
    if parts in ([], [""]):  # an empty list of a saved config.json
        return ()
    if wrong := [part for part in parts if not part.isdecimal() or int(part) < 1]:
        raise ValueError(f'"{wrong[0]}" is not a whole number above 0.')
    return tuple(int(part) for part in parts)


def _size(kind: type, tokens: Sequence[Token]) -> int | tuple[int, int]:
    """Read one length, or a height and a width."""
    lengths = _lengths(kind, tokens)
    if len(lengths) not in (1, 2):
        raise ValueError(f'"{tokens[0].value}" is not one length, nor HEIGHT,WIDTH.')
    return lengths[0] if len(lengths) == 1 else (lengths[0], lengths[1])


def _precision(_: type, tokens: Sequence[Token]) -> str:
    """Read a precision by Keras' name or by one that other programs use."""
    given = tokens[0].value
    name = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}.get(given, given)
    if name not in get_args(get_args(Precision)[0]):
        raise ValueError(f'"{given}" is not one of {", ".join(get_args(get_args(Precision)[0]))}.')
    return name


def _words(_: type, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Read names that are separated by commas."""
    return tuple(name.strip() for token in tokens for name in token.value.split(",") if name.strip())


Words = Annotated[tuple[str, ...], Parameter(converter=_words, n_tokens=1)]
"""names separated by commas on the command line, a tuple of str"""
Lengths = Annotated[tuple[int, ...], Parameter(converter=_lengths, n_tokens=1)]
"""lengths separated by commas on the command line, a tuple of int"""
if TYPE_CHECKING:
    ImageSize = int | tuple[int, int] | None
else:
    # cyclopts refuses, or splits in its own way, a union of types that take one word and two.
    ImageSize = Annotated[tuple[int, ...] | None, Parameter(converter=_size, n_tokens=1)]
"""height and width in pixels: one number for both, or two separated by a comma"""
Count = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1))]
"""an int from 1 up"""
CountOrNever = Annotated[int, Parameter(converter=_whole, validator=Number(gte=0))]
"""an int from 0 up"""
Seed = Annotated[int, Parameter(converter=_whole, validator=Number(gte=0, lt=2**31))]
"""an int from 0 to 2**31 - 1"""
Fraction = Annotated[float, Parameter(validator=Number(gte=0, lte=1))]
"""a float from 0 to 1"""
Decay = Annotated[float, Parameter(validator=Number(gte=0, lt=1))]
"""a float from 0 to below 1"""
Fit = Literal["crop", "pad", "stretch"]
Weights = Literal["averaged", "trained"]
Blend = Literal["none", "feather", "poisson"]
Kind = Literal["color", "translation", "cutout"]
Precision = Annotated[Literal["float32", "mixed_bfloat16", "mixed_float16"], Parameter(converter=_precision)]
Positive = Annotated[float, Parameter(validator=Number(gt=0, lt=math.inf))]
"""a finite float above 0"""
NonNegative = Annotated[float, Parameter(validator=Number(gte=0, lt=math.inf))]
"""a finite float from 0 up"""
