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
    likely = {**found, "--data": None} if "--data" in found else found
    words = [_words(flag, f"{config.data}:{name}" if each is None else each.likely) for flag, each in likely.items()]
    raise UserError(f"{'; also, '.join(map(str, found.values()))}. To make all clear, for example: {' '.join(words)}")


def _words(flag: str, value: str) -> str:
    return f"{flag}{'' if flag.endswith('=') else ' '}{shlex.quote(value)}"


def _with(error: Unclear, config: Config, name: str) -> tuple[Config, str]:
    """The settings and the name with the likely value."""
    if error.flag == "--data":
        return config, error.likely
    flag, _, of = error.flag.removeprefix("--").replace("-", "_").partition(" ")
    value = error.likely
    if of:
        value = ";".join(filter(None, [getattr(config.arrays, flag), f"{of}{value}"]))
    changes: dict[str, Any] = {flag: value}
    return dataclasses.replace(config, arrays=dataclasses.replace(config.arrays, **changes)), name
