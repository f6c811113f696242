"""Types of settings and options, with their limits and the way they are read from the command line."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from cyclopts import Parameter, Token
from cyclopts.validators import Number


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


def _words(_: type, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Read names that are separated by commas."""
    return tuple(name.strip() for token in tokens for name in token.value.split(",") if name.strip())


Words = Annotated[tuple[str, ...], Parameter(converter=_words, n_tokens=1)]
"""names separated by commas on the command line, a tuple of str"""
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
Kind = Literal["color", "translation", "cutout"]
Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
Positive = Annotated[float, Parameter(validator=Number(gt=0, lt=math.inf))]
"""a finite float above 0"""
NonNegative = Annotated[float, Parameter(validator=Number(gte=0, lt=math.inf))]
"""a finite float from 0 up"""
