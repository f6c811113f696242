"""Writes docs/api.md, the public names with their signatures and first sentences: python docs/make_api_table.py

With the path of a page of the site as its argument it writes that one, which has the whole docstrings below the tables.
"""

import logging
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import griffe

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "api.md"
_INTRODUCTION = """\
# What a recipe and Python code can use

Made by `docs/make_api_table.py` from the docstrings. [recipes.md](recipes.md) shows how the parts go together. One
import gives all names of a recipe, `losses` and `metrics` as modules:

```python
from hvdgan.recipe import Count, Recipe, Stage, Update, losses
```

B is the number of images that a call sees; H, W and C are the height, width and channels of an image. A name leads to
its docstring, which has the rest: shapes, ranges, errors and references.
"""
GROUPS = {
    "A recipe": "Recipe NoOptions DataSpec",
    "What a loss receives": "Batch Domain Nets Random State",
    "Stages and updates": "Stage Update Schedule Plateau Loss",
    "Types of options": "Count CountOrNever Seed Fraction Decay Positive NonNegative Words UserError",
    "Losses": "losses",
    "Metrics": "metrics",
    "From Python": "fit TrainedRun Logger StopRun RunError",
}
"""names of hvdgan.recipe by heading; the last are those of hvdgan itself, which it takes from hvdgan/api.py"""
# Classes that hvdgan makes, and what is public for hvdgan alone.
_GIVEN = {"Batch", "DataSpec", "Domain", "Nets", "NoOptions", "Random", "Recipe", "UserError"}
_GIVEN |= {"Logger", "RunError", "StopRun", "TrainedRun"}
_INTERNAL = {"completes", "due", "evaluates", "layout", "parts", "pixels", "to_json", "translates", "values"}


def page(*, site: bool = False) -> str:
    """The page; that of the site has the docstrings themselves, which mkdocstrings puts there."""
    logging.getLogger("griffe").setLevel(logging.ERROR)  # types that our docstrings leave to the signature
    loader = griffe.GriffeLoader(search_paths=[ROOT], docstring_parser="google")
    package = loader.load("hvdgan")
    lines = _INTRODUCTION.splitlines()
    for heading, names in GROUPS.items():
        room = package["api" if heading == "From Python" else "recipe"]
        found = [room[name].final_target if room[name].is_alias else room[name] for name in names.split()]
        plain = [each for each in found if not _rows(each)]
        if found[0].is_module:
            plain = _members(found[0])
        lines += ["", f"## {heading}"]
        if plain:
            lines += ["", *_table((_linked(each, site), _first(each)) for each in plain)]
        for each in found:
            if each.is_class and each not in plain:
                lines += [
                    "",
                    f"### {each.name}",
                    "",
                    f"{_linked(each, site)}: {_first(each)}.",
                    "",
                    *_table(_rows(each)),
                ]
        if site:
            lines += [line for each in found for line in ("", f"::: {each.canonical_path}")]
    return "\n".join(lines) + "\n"


def _members(of: griffe.Object) -> list[griffe.Object]:
    """What a module or class holds for others, as in its file."""
    return [
        each
        for name, each in of.members.items()
        if isinstance(each, griffe.Object) and each.docstring and not name.startswith("_") and name not in _INTERNAL
    ]


def _rows(of: griffe.Object) -> list[tuple[str, str]]:
    """The arguments or attributes of a class, and its methods."""
    if not of.is_class:
        return []
    kinds = {griffe.DocstringSectionKind.attributes}
    if of.name not in _GIVEN or of.name == "DataSpec":
        kinds.add(griffe.DocstringSectionKind.parameters)
    given = [each for part in of.docstring.parsed if part.kind in kinds for each in part.value] if of.docstring else []
    rows = [(f"`{each.name}`", _sentence(each.description)) for each in given if each.name not in _INTERNAL]
    return rows + [(f"`{_signature(each)}`", _first(each)) for each in _members(of)]


def _signature(of: griffe.Object) -> str:
    """A call as one writes it, without types, which are in the docstring."""
    if of.name in _GIVEN or not isinstance(of, griffe.Class | griffe.Function):
        return of.name
    named, words = False, []
    for each in of.parameters:
        if each.name in ("self", "cls"):
            continue
        if each.kind is griffe.ParameterKind.keyword_only and not named:
            words.append("*")
        named = named or each.kind in (griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional)
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(each.kind, "")
        words.append(f"{stars}{each.name}" + (f"={each.default}" if each.default is not None and not stars else ""))
    within = of.parent.name + "." if of.parent and of.parent.name in ("losses", "metrics") else ""
    return f"{within}{of.name}({', '.join(words)})"


def _linked(of: griffe.Object, site: bool) -> str:
    target = f"#{of.canonical_path}" if site else f"../{Path(str(of.filepath)).relative_to(ROOT)}"
    return f"[`{_signature(of)}`]({target})"


def _first(of: griffe.Object) -> str:
    return _sentence(of.docstring.value if of.docstring else "")


def _sentence(text: str) -> str:
    """The first sentence of a docstring, as Markdown in a cell."""
    first = re.split(r"(?<=[\w)\]`]\.)(?<!et al\.)\s|\n\n", text.strip())[0]
    parts = " ".join(first.split()).removesuffix(".").replace("|", "\\|").split("`")
    parts[::2] = [re.sub(r"([*<])", r"\\\1", part) for part in parts[::2]]  # outside of code
    return "`".join(parts)


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    return ["| name | what |", "|---|---|", *(f"| {name} | {what} |" for name, what in rows)]


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    where.write_text(page(site=where != PAGE), encoding="utf-8")
