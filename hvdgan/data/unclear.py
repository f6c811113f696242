"""Refuses all that is unclear about arrays at once, with likely flags to copy."""

import dataclasses
import shlex
from collections.abc import Callable
from typing import Any

from hvdgan.data.samples import Samples
from hvdgan.errors import UserError
from hvdgan.settings.config import Config


class Unclear(UserError):
    """What a flag would make clear; one that ends with = has several parts, as in --axes-of NAME=."""

    def __init__(self, text: str, flag: str, likely: str) -> None:
        super().__init__(text)
        self.flag, self.likely = flag, likely


def all_at_once(opened: Callable[[Config, str], Samples], config: Config, name: str) -> Samples:
    """Open samples by the settings and the name of their array, or refuse what they leave unclear.

    With a likely value of what is refused first, the samples are opened again to see what is refused next.
    """
    found: dict[str, Unclear] = {}
    while True:
        try:
            samples = opened(config, name)
        except Unclear as error:
            if error.flag in found:
                break
            found[error.flag] = error
            config, name = _with(error, config, name)
        except UserError:
            if not found:
                raise
            break
        else:
            if not found:
                return samples
            break
    first, *others = found.values()
    if not others:
        raise first
    values = {flag: getattr(config.arrays, _field(flag)) for flag in found if flag != "--data"}
    values = {**({"--data": f"{config.data}:{name}"} if "--data" in found else {}), **values}
    flags = " ".join({f"{flag.partition(' ')[0]} {shlex.quote(value)}": None for flag, value in values.items()})
    raise UserError(f"{'; also, '.join(map(str, found.values()))}. To make all clear, for example: {flags}")


def _field(flag: str) -> str:
    """The setting of arrays that a flag sets."""
    return flag.partition(" ")[0].removeprefix("--").replace("-", "_")


def _with(error: Unclear, config: Config, name: str) -> tuple[Config, str]:
    """The settings and the name with the likely value."""
    if error.flag == "--data":
        return config, error.likely
    field, of, value = _field(error.flag), error.flag.partition(" ")[2], error.likely
    if of:
        value = ";".join(filter(None, [getattr(config.arrays, field), f"{of}{value}"]))
    changes: dict[str, Any] = {field: value}
    return dataclasses.replace(config, arrays=dataclasses.replace(config.arrays, **changes)), name
