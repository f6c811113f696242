"""Writes the settings of a run as one flat JSON object, and reads a saved config.json."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError


def to_json(config: Config, options: Any) -> dict[str, Any]:
    """Make one flat object of all settings, by their names on the command line."""
    values: dict[str, Any] = {}
    for name, value in dataclasses.asdict(config).items():
        if name == "tfrecord":
            values |= {f"tfrecord_{key}": each for key, each in value.items()}
        else:
            values |= value if name in ("arrays", "evaluation") else {name: value}
    return json.loads(json.dumps({**values, **dataclasses.asdict(options)}, default=str))


def read_json(path: Path, named: str = "") -> dict[str, Any]:
    """Read a saved config.json."""
    named = named or str(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{named}: cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{named}: expected a JSON object of settings, found {type(values).__name__}")
    if not isinstance(values.get("pipeline", {}), dict):
        raise UserError(f"{named}: pipeline is {values['pipeline']!r}; expected a JSON object of its settings")
    return values
