"""The Options of a recipe as flags: their checks, their defaults, and lists in the words of a command line."""

import dataclasses
import inspect
from collections.abc import Collection, Sequence
from functools import partial
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hvdgan.recipe.recipe import Recipe
from hvdgan.recipe.recipe_errors import Mistake, attribute, call, described


def default_options(recipe: type[Recipe], taken: Collection[str], *, as_flags: bool) -> Any:
    """Make the Options of a recipe with its defaults, or refuse Options that cannot be settings, or flags.

    `taken` are the names of hvdgan's own settings. The saved options of an older run need not be flags.
    """
    Options, at = recipe.Options, attribute(recipe, "Options")
    if not (isinstance(Options, type) and dataclasses.is_dataclass(Options)):
        raise Mistake(
            f"Options is {described(Options)}; Options must be a frozen dataclass with a default for every field", at
        )
    if twice := {*taken} & {field.name for field in dataclasses.fields(Options)}:
        raise Mistake(f"the option {', '.join(sorted(twice))} is also a setting of hvdgan; rename it", Options)
    if as_flags:
        _check_flags(Options)
    return call(Options, what="Options", wanted="every field of its Options needs a default")


def _check_flags(Options: Any) -> None:
    if not Options.__dataclass_params__.frozen:
        raise Mistake("Options is not frozen; write @dataclasses.dataclass(frozen=True) above it", Options)
    for kind in Options.__mro__:
        for name, value in vars(kind).items():
            typed = name in inspect.get_annotations(kind) or name.startswith("_")
            if not typed and isinstance(value, int | float | str | tuple):
                raise Mistake(
                    f"Options.{name} has no type, and is no flag; write {name}: {type(value).__name__} = {value!r}",
                    attribute(kind, name),
                )


def without_commas(arguments: Sequence[str], Options: type) -> list[str]:
    """Split the lists of a recipe in the words of a command line, which are given as 1,2,3, as cyclopts wants them.

    A list becomes its flag before each value; a tuple of a fixed length becomes its flag before all values.
    """
    hints = call(partial(get_type_hints, Options, include_extras=True), what="Options")
    lists = {name: kind for name, hint in hints.items() if (kind := _list_type(hint)) is not None}
    words: list[str] = []
    waiting = None  # the type of the list whose flag was the last word
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        hint = lists.get(flag.removeprefix("--").replace("-", "_")) if flag.startswith("--") else None
        if waiting and not argument.startswith("--"):
            words[-1:] = _spread(words[-1], argument, waiting)
        else:
            words += _spread(flag, value, hint) if hint and equals else [argument]
        waiting = None if equals else hint
    return words


def _list_type(hint: Any) -> Any:
    """The type of an option that is a list, or a list or None; None if the option is no list."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if get_origin(hint) in (Union, UnionType) and len(kinds) == 1:
        hint = kinds[0]
    return hint if get_origin(hint) in (tuple, list, Sequence) else None


def _spread(flag: str, value: str, hint: Any) -> list[str]:
    values = [part.strip() for part in value.split(",")]
    variadic = get_origin(hint) is not tuple or get_args(hint)[1:] == (Ellipsis,)
    return [word for each in values for word in (flag, each)] if variadic else [flag, *values]
