"""The settings of a run that differ from their defaults, as far as the defaults are known without TensorFlow."""

import json
from collections.abc import Sequence
from typing import Any

from hvdgan.cli.config import Config, to_json

MOST = 200
"""number of settings that a page lists"""


def defaults() -> dict[str, Any]:
    """Return the defaults of all settings except the recipe's options, with the names of config.json."""
    return _flat(to_json(Config()))


def changed(config: dict[str, Any]) -> list[tuple[str, str, str]]:
    """List the settings that differ from their defaults: flag, value, default."""
    known = defaults()
    return [
        (flag(name), shown(value), shown(known[name]))
        for name, value in _flat(config).items()
        if name in known and value != known[name]
    ]


def options(config: dict[str, Any], changed: Sequence[str] | None) -> list[tuple[str, str]]:
    """List the options of the recipe that differ from its defaults, as far as they are known: flag and value."""
    known = defaults()
    flags = {each.split(" ")[0].partition("=")[0].partition(".")[0] for each in changed or ()}
    rows = [(flag(name), shown(value)) for name, value in _flat(config).items() if name not in known]
    return [row for row in rows if changed is None or row[0] in flags]


def differing(configs: list[dict[str, Any]]) -> list[str]:
    """List the names of the settings that are not the same in all of these; run_dir is left out."""
    flat = [_flat(config) for config in configs]
    names = dict.fromkeys(name for each in flat for name in each if name != "run_dir")
    return [name for name in names if any(shown(each.get(name)) != shown(flat[0].get(name)) for each in flat)]


def value_of(config: dict[str, Any], name: str) -> str:
    """Return the value of a setting as text, by a name of differing()."""
    return shown(_flat(config).get(name))


def shown(value: Any) -> str:
    """Return a value as text: a string as it is, any other as JSON."""
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value)


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if name == "pipeline" and isinstance(value, dict):
            flat |= {f"pipeline.{key}": each for key, each in value.items()}
        else:
            flat[name] = value
    return flat


def flag(name: str) -> str:
    """Return the flag of a setting, by its name in config.json."""
    return f"--{name.replace('_', '-')}"
