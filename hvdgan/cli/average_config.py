"""Settings of the moving average of the weights: a decay per step, or a half-life in images, never both."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Group, Parameter

from hvdgan.cli.errors import UserError
from hvdgan.cli.types import Decay, Positive

TRAINING = Parameter(group=Group("Training", sort_key=4))
_DECAY = 0.995


@dataclasses.dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """Settings of the average; exactly one of the two is not None once it is made."""

    ema_decay: Annotated[Decay | None, TRAINING] = None
    """decay per step of the weights' moving average, for samples; 0: no average; default: 0.995, or the half-life"""
    ema_half_life: Annotated[Positive | None, TRAINING] = None
    """half-life of that average (images), in place of --ema-decay; at first 0.05 times the images seen, if less"""

    def __post_init__(self) -> None:
        if self.ema_decay is not None and self.ema_half_life is not None:
            raise UserError(
                f"--ema-half-life {self.ema_half_life:.12g}, --ema-decay {self.ema_decay:.12g}: both set the same "
                "average; give one of them"
            )
        if self.ema_half_life is None and self.ema_decay is None:
            object.__setattr__(self, "ema_decay", _DECAY)


def without_replaced(saved: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Leave a saved average out if the command line has a flag for either kind of average.

    Args:
        saved: contents of a config.json, which always holds one of the two settings.
        arguments: words of the command line.
    """
    fields = [field.name for field in dataclasses.fields(AverageConfig)]
    flags = {f"--{name.replace('_', '-')}" for name in fields}
    replaced = any(argument.partition("=")[0] in flags for argument in arguments)
    return {name: value for name, value in saved.items() if not (replaced and name in fields)}
