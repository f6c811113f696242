"""Writes the settings that differ from the defaults as the flags that give them."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from hvdgan.cli.config import Config
from hvdgan.training.saved_settings import to_json


def changed_flags(config: Config, options: Any) -> list[str]:
    """Write each setting that differs from its default as a flag, quoted for a shell.

    Args:
        config: settings of a run.
        options: options of its recipe, a dataclass instance whose class has a default for every field.

    Returns:
        Flags with their values, such as `--nf 32`, in the order of config.json.
    """
    defaults = to_json(Config(), type(options)())
    return [" ".join(map(shlex.quote, words)) for words in _changed(to_json(config, options), defaults, "--")]


def _changed(values: Mapping[str, Any], defaults: Mapping[str, Any], start: str) -> Iterator[list[str]]:
    for name, value in values.items():
        flag, default = start + name.replace("_", "-"), defaults.get(name)
        if isinstance(value, dict):
            yield from _changed(value, default if isinstance(default, dict) else {}, f"{flag}.")
        elif value != default and value is not None:  # no flag sets None
            yield from _words(flag, value)


def _words(flag: str, value: Any) -> Iterator[list[str]]:
    if isinstance(value, bool):
        yield [flag if value else f"{flag}=false"]
    elif isinstance(value, list):
        yield [flag, ",".join(map(str, value))]
    else:
        text = str(value)
        # The parser would take a value such as -0.5 for a flag.
        yield [f"{flag}={text}"] if text.startswith("-") else [flag, text]
