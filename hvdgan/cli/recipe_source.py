"""Reads the options of a recipe from its source, for --help and a look at the flags, and what hvdgan's recipes are.

An import would take the seconds that TensorFlow takes.
"""

import ast
import dataclasses
import importlib.util
import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from hvdgan.settings.own_code import search_working_folder

_RECIPES = """hvdgan train --recipe NAME trains one of these; --recipe NAME --help lists its options. Recipes of
pictures take squares of 32, 64, 128 or 256 pixels with 1 or 3 channels. --recipe my_gan:MyGAN trains your own."""


def options_in_source(recipe: str) -> type | None:
    """Make a class with the fields of a recipe's Options; None if they are not written in the file of the recipe."""
    module, _, name = recipe.partition(":")
    search_working_folder()
    try:
        spec = importlib.util.find_spec(module if name else f"hvdgan.recipes.{module}")
        body = ast.parse(Path(str(spec and spec.origin)).read_bytes()).body
        options = _named(_named(body, name or "RECIPE").body, "Options", body)
        if options.bases:
            return None
        fields = [_field(*pair) for pair in zip(options.body, [*options.body[1:], None], strict=True)]
        of_here = {"__module__": __name__}  # cyclopts looks into no class of the standard library
        return dataclasses.make_dataclass("Options", [each for each in fields if each], namespace=of_here)
    except (LookupError, ImportError, OSError, ValueError, SyntaxError, RecursionError):
        return None


def list_of_recipes() -> str:
    """A paragraph about each recipe of hvdgan: the first lines of its class."""
    paragraphs = [textwrap.fill(_RECIPES, 80)]
    for path in sorted((Path(__file__).parents[1] / "recipes").glob("[a-z]*.py")):
        body = ast.parse(path.read_bytes()).body
        what = " ".join((ast.get_docstring(_named(body, "RECIPE")) or "").partition("\n\n")[0].split())
        paragraphs.append(textwrap.fill(what, 80, initial_indent=f"  {path.stem:13}", subsequent_indent=" " * 15))
    return "\n".join(paragraphs)


def _named(body: list[ast.stmt], name: str, module: list[ast.stmt] | None = None) -> ast.ClassDef:
    """The class of a name, or the one that is assigned to it."""
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and ast.unparse(node.targets[0]) == name:
            return _named(module or body, node.value.id)
    raise LookupError(name)


def _field(node: ast.stmt, after: ast.stmt | None) -> tuple[str, Any, Any] | None:
    """Name, type and default of an option, with its meaning; the type as far as --help shows it."""
    if not isinstance(node, ast.AnnAssign) or node.value is None:
        return None
    meaning = ast.literal_eval(after.value) if isinstance(after, ast.Expr) else ""
    annotation = ast.unparse(node.annotation)
    kind: Any = bool if annotation == "bool" else tuple[str, ...] if "[" in annotation else str
    if isinstance(node.annotation, ast.Subscript) and ast.unparse(node.annotation.value) == "Literal":
        kind = Literal[ast.literal_eval(node.annotation.slice)]
    try:
        default = ast.literal_eval(node.value)
        hash(default)
    except (ValueError, TypeError):
        default = ast.unparse(node.value)
    return ast.unparse(node.target), Annotated[kind, Parameter(help=str(meaning))], dataclasses.field(default=default)
