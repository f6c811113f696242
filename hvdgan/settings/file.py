"""Reads the settings of a run from a TOML, YAML or JSON file, and writes them as TOML with comments."""

import itertools
import json
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hvdgan.errors import UserError, in_one_line

_WIDTH = 110


def read_settings(path: Path, named: str = "") -> dict[str, Any]:
    """Read settings by their names from .toml, .yaml, .yml or else JSON; `named` begins messages, not the path."""
    named = named or str(path)
    values = _by_name(_read(path, named), named)
    if not isinstance(values.get("pipeline", {}), dict):
        raise UserError(f"{named}: pipeline is {values['pipeline']!r}; expected its settings by their names")
    return values


def read_runs(path: Path, named: str) -> list[dict[str, Any]]:
    """Read the settings of several runs: a list of tables, or one table, whose lists give a run for each combination.

    TOML has no list without a name, so the list may be called runs.
    """
    values = _read(path, named)
    if isinstance(values, dict) and values.keys() == {"runs"}:
        values = values["runs"]
    if isinstance(values, dict):
        choices = [each if isinstance(each, list) else [each] for each in values.values()]
        values = [dict(zip(values, each, strict=True)) for each in itertools.product(*choices)]
    if not isinstance(values, list) or not values:
        raise UserError(f"{named}: expected a list of tables of settings, or a table of lists")
    return [_by_name(each, f"{named}, run {number}") for number, each in enumerate(values)]


def _read(path: Path, named: str) -> Any:
    form, parse = _FORMATS.get(path.suffix.lower(), ("JSON", json.loads))
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{named}: cannot be read as {form}: {in_one_line(error)}") from error


def _by_name(values: Any, named: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UserError(f"{named}: expected settings by their names, found {type(values).__name__}")
    return {str(key).replace("-", "_"): value for key, value in values.items()}


def as_toml(settings: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """Write settings as TOML, each below its comment, which is found by its flag; None is written as a comment, too."""
    lines = []
    for name, value in settings.items():
        nested = {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        for key, each in nested.items():
            text = " ".join(comments.get(f"--{key.replace('_', '-')}", "").split())
            lines += textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")
            lines.append(f"# {key} =" if each is None else f"{key} = {json.dumps(each, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """Write settings as words of a command line; None leaves one out, and a list is one word with commas."""
    words = []
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, dict):
            words += as_words({f"{name}.{key}": each for key, each in value.items()})
        elif isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif value is not None:
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            words.append(f"{flag}={text}")
    return words


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise UserError("a YAML file needs PyYAML: pip install pyyaml, or write TOML") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(in_one_line(error)) from error


_FORMATS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    ".toml": ("TOML", tomllib.loads),
    ".yaml": ("YAML", _yaml),
    ".yml": ("YAML", _yaml),
}
