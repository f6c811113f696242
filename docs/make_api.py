"""Writes docs/api.md from the signatures and docstrings of what a recipe uses: python docs/make_api.py"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "api.md"

# What a recipe's author uses, in the order of the page, by the module that defines it; hvdgan.recipe exports all of it.
# The other public names of these modules are the trainer's own.
DOCUMENTED = {
    "hvdgan.recipe.recipe": ["Recipe", "NoOptions"],
    "hvdgan.recipe.data_spec": ["DataSpec"],
    "hvdgan.recipe.batch": ["Batch"],
    "hvdgan.recipe.nets": ["Nets"],
    "hvdgan.recipe.draws": ["Random"],
    "hvdgan.recipe.state": ["State", "StateValues"],
    "hvdgan.recipe.stages": ["Stage", "Update", "Loss", "LearningRate", "Plateau"],
    "hvdgan.cli.types": ["Count", "CountOrNever", "Seed", "Fraction", "Decay", "Positive", "NonNegative", "Words"],
    "hvdgan.cli.errors": ["UserError"],
    "hvdgan.recipe.losses": None,
    "hvdgan.recipe.measures": None,
}
INTERNAL = {
    "hvdgan.recipe.batch": ["Parts", "scoped", "unpack"],
    "hvdgan.recipe.nets": ["Call", "SharedForward"],
    "hvdgan.recipe.data_spec": ["of_json"],
    "hvdgan.cli.types": ["read_kinds"],
    "hvdgan.cli.errors": ["RunError", "LostPeer", "RankFailed", "in_one_line", "unwritable"],
}
# They are made by the trainer and handed to the recipe, so their constructors are left out.
HANDED = {"Batch", "Nets", "Random", "StateValues"}

_INTRODUCTION = """# What a recipe can use

Made from the docstrings by `python docs/make_api.py`. [recipes.md](recipes.md) shows how the parts go together.
B is the number of images that a call sees; H, W and C are the height, width and channels of an image.

## `hvdgan.recipe`

One import gives everything on this page, `losses` and `measures` as modules:

```python
from hvdgan.recipe import Count, Recipe, Stage, Update, losses
```"""
_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Reference|Command|Expect):(.*)")


def page() -> str:
    """The whole page, as Markdown."""
    parts = [_INTRODUCTION]
    for module, names in DOCUMENTED.items():
        source = _source(module)
        tree = ast.parse(source)
        nodes = dict(_public(tree))
        chosen = list(nodes) if names is None else names
        if names is None:
            parts.append(f"## `{module}`\n\n{_markdown(ast.get_docstring(tree))}")
        parts += [_entry(name, nodes[name], source) for name in chosen]
    return "\n\n".join(parts) + "\n"


def public_names(module: str) -> list[str]:
    """Names of the classes, functions and described constants of a module, without those that begin with _."""
    return [name for name, _ in _public(ast.parse(_source(module)))]


def _source(module: str) -> str:
    return (ROOT / Path(*module.split("."))).with_suffix(".py").read_text()


def _public(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for name, node, text in _described(tree.body):
        if text:
            yield name, node
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            yield node.name, node


def _described(body: list[ast.stmt]) -> Iterator[tuple[str, ast.Assign | ast.AnnAssign, str]]:
    """Assigned names, their statements, and the strings that stand below them."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name) and target.id[0] != "_":
            below = after.value if isinstance(after, ast.Expr) else None
            yield target.id, node, str(below.value) if isinstance(below, ast.Constant) else ""


def _entry(name: str, node: ast.AST, source: str) -> str:
    if isinstance(node, ast.FunctionDef):
        return f"### `{name}`\n\n{_function(node, source)}"
    if not isinstance(node, ast.ClassDef):
        (text,) = (text for found, _, text in _described(ast.parse(source).body) if found == name)
        return f"### `{name}`\n\n{_sentence(text)}"
    parts = [f"### `{name}`"]
    methods = [child for child in node.body if isinstance(child, ast.FunctionDef)]
    fields = list(_described(node.body))
    if name not in HANDED:
        own = next((method for method in methods if method.name == "__init__"), None)
        is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        arguments = _arguments(own, source) if own else _fields(fields, source) if is_dataclass else []
        parts.append(_code(name, arguments, ""))
    text = ast.get_docstring(node) or ""
    if name in HANDED:  # its arguments are those of the constructor that is left out
        text = re.sub(r"\n*^Args:\n(?:(?: .*)?\n?)*", "\n", text, flags=re.MULTILINE)
    parts.append(_markdown(text))
    if described := [(name, _value(child, source), text) for name, child, text in fields if text]:
        items = [f"- `{name}{value}`: {_sentence(text)}" for name, value, text in described]
        parts.append("Class attributes:\n\n" + "\n".join(items))
    for method in methods:
        if not method.name.startswith("_"):
            parts.append(f"#### `{name}.{method.name}`\n\n{_function(method, source)}")
    return "\n\n".join(parts)


def _function(node: ast.FunctionDef, source: str) -> str:
    """Signature and docstring."""
    text = _markdown(ast.get_docstring(node))
    if any(ast.unparse(decorator) == "property" for decorator in node.decorator_list):
        return text
    returns = ast.get_source_segment(source, node.returns) if node.returns else ""
    return f"{_code(node.name, _arguments(node, source), returns or '')}\n\n{text}"


def _code(name: str, arguments: list[str], returns: str) -> str:
    end = f") -> {returns}" if returns else ")"
    line = f"{name}({', '.join(arguments)}{end}"
    if len(line) > 100:
        line = "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), end])
    return f"```python\n{line}\n```"


def _arguments(node: ast.FunctionDef, source: str) -> list[str]:
    """The arguments as they stand in the source, without self."""
    given = node.args
    defaults: list[ast.expr | None] = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
    positional = [_argument(arg, default, source) for arg, default in zip(given.args, defaults, strict=True)]
    named = [_argument(arg, default, source) for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [arg for arg in positional if arg not in ("self", "cls")] + (["*", *named] if named else [])


def _argument(arg: ast.arg, default: ast.expr | None, source: str) -> str:
    text = ast.get_source_segment(source, arg) or ""
    return text if default is None else f"{text} = {ast.get_source_segment(source, default)}"


def _fields(fields: list[tuple[str, ast.Assign | ast.AnnAssign, str]], source: str) -> list[str]:
    """A dataclass's arguments."""
    return [ast.get_source_segment(source, node) or "" for _, node, _ in fields]


def _value(node: ast.Assign | ast.AnnAssign, source: str) -> str:
    return f" = {ast.get_source_segment(source, node.value)}" if node.value else ""


def _markdown(text: str | None) -> str:
    """A docstring, its sections as lists."""
    parts: list[str] = []
    for block in re.split(r"\n\n+|\n(?=[A-Z]\w+:\n)", inspect.cleandoc(text or "")):
        first, _, rest = block.partition("\n")
        section = _SECTION.fullmatch(first)
        if section is None:
            parts.append(block)
        elif section[1] in ("Args", "Attributes", "Raises"):
            entries = re.split(r"\n(?=\S)", textwrap.dedent(rest))
            title = {"Args": "Arguments", "Raises": "Errors"}.get(section[1], section[1])
            parts.append(f"{title}:\n\n" + "\n".join(map(_item, entries)))
        else:
            body = f"{section[2]} {rest}"
            parts.append(f"{section[1]}: {_line(body)}")
    return "\n\n".join(parts)


def _item(entry: str) -> str:
    name, _, text = entry.partition(":")
    return f"- `{name}`: {_line(text)}"


def _line(text: str) -> str:
    return " ".join(text.split())


def _sentence(text: str) -> str:
    text = _line(text)
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    PAGE.write_text(page())
