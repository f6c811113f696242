"""Reads the options of a recipe from its source for --help: an import would take the seconds that TensorFlow takes."""

import ast
import dataclasses
import functools
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

_Defined = tuple[str, Any]
"""the name of a module, and a node of its source"""


def options_in_source(recipe: str) -> type | None:
    """Make a class with the fields of a recipe's Options; None if only an import can tell them.

    Args:
        recipe: value of --recipe.
    """
    module, _, name = recipe.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        options = _options(_definition(*((module, name) if name else (f"hvdgan.recipes.{module}", "RECIPE"))))
        fields = {name: each for name, *each in _fields(options)}
        return dataclasses.make_dataclass("Options", [(name, *each) for name, each in fields.items()], kw_only=True)
    except (LookupError, ImportError, OSError, ValueError, SyntaxError, TypeError, AttributeError, RecursionError):
        return None


@functools.cache
def _source(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(module)
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _definition(module: str, name: str) -> _Defined:
    """The class or value that a name of a module stands for."""
    for node in reversed(_source(module).body):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return _definition(module, node.value.id) if isinstance(node.value, ast.Name) else (module, node.value)
        # The package hvdgan.recipe imports TensorFlow, and would be imported to find its modules.
        if isinstance(node, ast.ImportFrom) and node.module not in (None, "hvdgan.recipe") and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _definition(str(node.module), alias.name)
    raise LookupError(name)


def _named(module: str, node: ast.expr) -> _Defined:
    return _definition(module, ast.unparse(node))


def _options(recipe: _Defined) -> _Defined:
    """The class that is the Options of a recipe's class, or of one that it inherits from."""
    module, node = recipe
    for each in node.body:
        if isinstance(each, ast.ClassDef) and each.name == "Options":
            return module, each
        targets = getattr(each, "targets", [getattr(each, "target", None)])
        if isinstance(each, ast.Assign | ast.AnnAssign) and each.value and ast.unparse(targets[0]) == "Options":
            return _named(module, each.value)
    if ast.unparse(node.bases[0]).rpartition(".")[2] == "Recipe":
        return module, ast.ClassDef("NoOptions", [], [], [], [])
    return _options(_named(module, node.bases[0]))


def _fields(options: _Defined) -> Iterator[tuple[str, Any, Any]]:
    """The fields of a dataclass: name, type and default, after those that it inherits."""
    module, node = options
    for base in node.bases:
        yield from _fields(_named(module, base))
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and each.value is not None:
            meaning = ast.literal_eval(after.value) if isinstance(after, ast.Expr) else ""
            kind = Annotated[_type(module, each.annotation), Parameter(help=str(meaning))]
            yield ast.unparse(each.target), kind, dataclasses.field(default=_value(each.value))


def _type(module: str, node: ast.expr) -> Any:
    """The type of an option, as far as --help shows it: bool, a choice, or any other."""
    if isinstance(node, ast.Name) and node.id not in ("bool", "int", "float", "str"):
        try:
            node = _named(module, node)[1]
        except LookupError:
            return str
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
        choices = ast.literal_eval(node.slice)
        return Literal[choices]
    return bool if ast.unparse(node) == "bool" else str


def _value(node: ast.expr) -> Any:
    """A default, or its source where it is no plain number or text."""
    try:
        value = ast.literal_eval(node)
        hash(value)
    except (ValueError, TypeError):
        return ast.unparse(node)
    return value
