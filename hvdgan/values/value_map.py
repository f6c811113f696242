"""The declared map from the numbers of the data to those that networks see; it is saved, and can be undone."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hvdgan.errors import UserError
from hvdgan.values import transforms
from hvdgan.values.transforms import OneHot, Range, Standard, Step

Chain = tuple[Step, ...]
_EXACT = (np.float16, np.float32, np.int8, np.uint8, np.int16, np.uint16)
"""types whose numbers are exact in float32; all others are computed with in float64"""
_ROUNDED = 1e-14
"""deviation that the rounding of a map in float64 can leave in equal numbers, as a part of their mean"""
_SLACK = 1e-6
"""part of a range by which the rounding of its ends may exceed it"""
_TINY = float(np.finfo(np.float64).tiny)


@dataclasses.dataclass(frozen=True)
class ValueMap:
    """A chain of steps, the same for all channels or one for each.

    Args:
        chains: one chain for all channels, or one for each channel.
        channels: names of the channels, or of the conditions.
        units: unit of each channel; "" where it is not known.
    """

    chains: tuple[Chain, ...]
    channels: tuple[str, ...]
    units: tuple[str, ...] = ()

    @property
    def is_identity(self) -> bool:
        """True if the numbers stay as they are."""
        return not any(self.chains)

    @property
    def lacks_statistics(self) -> bool:
        """True if a step needs means and deviations that have not been computed."""
        return any(_unresolved_in(chain) is not None for chain in self.chains)

    @property
    def width(self) -> int:
        """Number of channels that networks see: that of the data, but for `onehot`."""
        first = next(iter(self.chains[0]), None)
        return int(first.classes) if isinstance(first, OneHot) else len(self.channels)

    def forward(self, values: np.ndarray) -> np.ndarray:
        """Map numbers of the data, (..., C) of any type, to float32 (..., C)."""
        if self.is_identity:
            return values.astype(np.float32, copy=False)
        wide = values.astype(np.float32 if values.dtype.type in _EXACT else np.float64, copy=False)
        return self.forward_of(wide, np).astype(np.float32, copy=False)

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """Map numbers that networks see, (..., C), to those of the data, float32 (..., C)."""
        if self.is_identity:
            return values.astype(np.float32, copy=False)
        return self.inverse_of(values.astype(np.float64), np).astype(np.float32)

    def forward_of(self, values: Any, ops: Any) -> Any:
        """As forward() by the functions of numpy or keras.ops, in the numbers' own type; gradients flow through."""
        return self._applied(values, ops, forward=True)

    def inverse_of(self, values: Any, ops: Any) -> Any:
        """As inverse(), in the same way."""
        return self._applied(values, ops, forward=False)

    def lost_in_words(self, values: np.ndarray, seen: np.ndarray, where: Callable[[tuple[int, ...]], str]) -> str:
        """Describe the first value that the map turns into NaN or infinity, for messages; "" if there is none.

        `where` describes its place, without the channel.
        """
        finite = np.isfinite(seen)
        if finite.all():
            return ""
        place = tuple(int(axis[0]) for axis in np.nonzero(~finite))
        words = f"{self.channels[place[-1]]}{where(place[:-1])} is {values[place]:g}"
        return f"{words}, which its map {self.channel(place[-1])} turns into {seen[place]:g}"

    def outside_in_words(self, seen: np.ndarray) -> str:
        """The channels whose last step is a range that some mapped numbers exceed, in words; "" if there are none."""
        found = [
            name
            for place, name in enumerate(self.channels)
            if isinstance(next(iter(self.channel(place).chains[0][::-1]), None), Range)
            and (np.abs(seen[..., place]) > 1 + _SLACK).any()
        ]
        return f"numbers of {', '.join(found)} lie outside of the declared range, and are not clipped" if found else ""

    def differs_in_statistics(self, other: "ValueMap") -> bool:
        """Whether the other map is this one, but for statistics which this one lacks and the other has."""
        return (
            self.lacks_statistics
            and not other.lacks_statistics
            and self.channels == other.channels
            and self.chains == tuple(tuple(map(_without_statistics, chain)) for chain in other.chains)
        )

    def before_statistics(self, values: np.ndarray) -> np.ndarray:
        """Apply the steps before the first one that lacks its statistics, in float64 (..., C)."""
        before = dataclasses.replace(self, chains=tuple(chain[: _unresolved_in(chain)] for chain in self.chains))
        return before.forward_of(values.astype(np.float64, copy=False), np)

    def with_statistics(self, means: Sequence[float], deviations: Sequence[float]) -> "ValueMap":
        """Fill in the first step of each chain that lacks its statistics; a constant channel is refused."""
        chains = list(self.chains)
        for place, chain in enumerate(self.chains):
            if (number := _unresolved_in(chain)) is None:
                continue
            mine = slice(None) if len(chains) == 1 else slice(place, place + 1)
            for channel, mean, deviation in zip(self.channels[mine], means[mine], deviations[mine], strict=True):
                if not deviation > _ROUNDED * max(abs(mean), _TINY):
                    raise UserError(
                        f"channel {channel} hardly differs: mean {mean:.9g}, deviation {deviation:.3g}, by which "
                        "standard would divide; give it another map, such as range:LOW,HIGH or none"
                    )
            filled = Standard(tuple(means[mine]), tuple(deviations[mine]))
            chains[place] = (*chain[:number], filled, *chain[number + 1 :])
        return dataclasses.replace(self, chains=tuple(chains))

    def channel(self, place: int) -> "ValueMap":
        """The map of one channel, for numbers (..., 1)."""
        if len(self.chains) == 1:
            chain = tuple(_of_channel(step, place) for step in self.chains[0])
        else:
            chain = self.chains[place]
        return ValueMap((chain,), (self.channels[place],), self.units[place : place + 1])

    def to_json(self) -> dict[str, Any]:
        chains = [[[step.name, step.arguments()] for step in chain] for chain in self.chains]
        return {"chains": chains, "channels": list(self.channels), "units": list(self.units)}

    def __str__(self) -> str:
        texts = ["+".join(map(str, chain)) or "none" for chain in self.chains]
        if len(texts) == 1:
            return texts[0]
        return "; ".join(f"{name}={text}" for name, text in zip(self.channels, texts, strict=True))

    def _applied(self, values: Any, ops: Any, *, forward: bool) -> Any:
        """Apply all steps of each chain, or undo them in the opposite order."""

        def applied(chain: Chain, values: Any) -> Any:
            for step in chain if forward else chain[::-1]:
                values = step.forward(values, ops) if forward else step.inverse(values, ops)
            return values

        if len(self.chains) == 1:
            return applied(self.chains[0], values)
        return ops.concatenate(
            [applied(chain, values[..., place : place + 1]) for place, chain in enumerate(self.chains)], axis=-1
        )


def of_json(values: dict[str, Any]) -> ValueMap:
    """Make a map again from to_json()."""
    chains = tuple(tuple(transforms.of(name, arguments) for name, arguments in chain) for chain in values["chains"])
    return ValueMap(chains, tuple(values["channels"]), tuple(values["units"]))


def parse(
    text: str, flag: str, channels: Sequence[str], units: Sequence[str] = (), *, widens: bool = False
) -> ValueMap:
    """Read the value of a flag: steps for all channels, or CHANNEL=STEPS;CHANNEL=STEPS for each.

    If it may widen, `onehot` makes channels of the only one.
    """
    named = f"{flag}{'' if flag.endswith('=') else ' '}{text}"
    if "=" not in text:
        steps = transforms.parse(text.strip(), named)
        if any(isinstance(step, OneHot) for step in steps) and not (widens and len(steps) == len(channels) == 1):
            has = f"; this one has {len(channels)}: if they are places, name its axes, as in --axes-of NAME=W"
            what = f"{named}: onehot is the only map of an array of --arrays that has one channel"
            raise UserError(what + has * (widens and len(channels) > 1))
        return ValueMap((steps,), tuple(channels), tuple(units))
    chains: dict[str, Chain] = {}
    for part in text.split(";"):
        channel, _, chain = (piece.strip() for piece in part.partition("="))
        if channel not in channels:
            raise UserError(f"{named}: there is no channel {channel!r}; expected {', '.join(channels)}")
        if channel in chains:
            raise UserError(f"{named}: channel {channel} has two maps; name it once")
        chains[channel] = transforms.parse(chain, named)
    if missing := [channel for channel in channels if channel not in chains]:
        raise UserError(f"{named}: no map for {', '.join(missing)}; add {missing[0]}=none, or another one, after a ;")
    return ValueMap(tuple(chains[channel] for channel in channels), tuple(channels), tuple(units))


def _unresolved_in(chain: Chain) -> int | None:
    places = [number for number, step in enumerate(chain) if isinstance(step, Standard) and not step.means]
    return places[0] if places else None


def _without_statistics(step: Step) -> Step:
    return Standard() if isinstance(step, Standard) else step


def _of_channel(step: Step, place: int) -> Step:
    if isinstance(step, Standard) and len(step.means) > 1:
        return Standard((step.means[place],), (step.deviations[place],))
    return step
