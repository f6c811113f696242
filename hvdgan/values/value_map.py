"""The declared map from the numbers of the data to those that networks see; it is saved, and can be undone."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.values import steps
from hvdgan.values.steps import NUMPY, CustomMap, Operations, Range, Standard, Step

Chain = tuple[Step, ...]
NARROW = (np.float16, np.int8, np.uint8, np.int16, np.uint16)
"""types that are narrower than float32, and whose numbers are exact in it"""
_EXACT = (np.float32, *NARROW)
"""types whose numbers are exact in float32; all others are computed with in float64"""
_ROUNDED = 1e-14
"""deviation that the rounding of a map in float64 can leave in equal numbers, as a part of their mean"""
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
    def is_one_step_of_arithmetic(self) -> bool:
        """True if each number is at most shifted and scaled once, which has the same bits in NumPy and TensorFlow.

        Logarithms and powers may differ in the last bit, and TensorFlow joins the constants of two steps in a row.
        """
        return all(
            len(chain) <= 1 and all(isinstance(step, Range | Standard) for step in chain) for chain in self.chains
        )

    def forward(self, values: np.ndarray) -> np.ndarray:
        """Map numbers of the data, (..., C) of any type, to float32 (..., C)."""
        if self.is_identity:
            return values.astype(np.float32, copy=False)
        return self.forward_of(_wide(values), NUMPY).astype(np.float32, copy=False)

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """Map numbers that networks see, (..., C), to those of the data, float32 (..., C)."""
        if self.is_identity:
            return values.astype(np.float32, copy=False)
        return self.inverse_of(values.astype(np.float64), NUMPY).astype(np.float32)

    def forward_of(self, values: Any, ops: Operations) -> Any:
        """As forward(), for tensors of any library, in their own type; gradients flow through its functions."""
        return self._for_chains(_chained, values, ops)

    def inverse_of(self, values: Any, ops: Operations) -> Any:
        """As inverse(), for tensors of any library, in their own type."""
        return self._for_chains(_undone, values, ops)

    def outside_in_words(self, values: np.ndarray) -> str:
        """How many numbers lie outside of a range of their chain, once the steps before it are applied, for messages.

        Args:
            values: numbers of the data, (..., C).

        Returns:
            Words; an empty string if none lies outside.
        """
        count = 0
        for place, chain in enumerate(self.chains):
            count += _outside(chain, values if len(self.chains) == 1 else values[..., place : place + 1])
        of = f"{count:,} of {values.size:,} numbers"
        return f"{of} lie outside of the declared range, and are not clipped: {self}" if count else ""

    def lost_in_words(self, values: np.ndarray, seen: np.ndarray, where: Callable[[tuple[int, ...]], str]) -> str:
        """The first number of the data that is mapped to no finite one, for messages; an empty string if there is none.

        Args:
            values: numbers of the data, (..., C).
            seen: the same numbers once they are mapped, or once the first steps are applied.
            where: function of a number's place, without the channel, that returns words to put after the channel.
        """
        finite = np.isfinite(seen)
        if finite.all():
            return ""
        place = tuple(int(axis[0]) for axis in np.nonzero(~finite))
        words = f"{self.channels[place[-1]]}{where(place[:-1])} is {values[place]:g}"
        return f"{words}, which its map {self.channel(place[-1])} turns into {seen[place]:g}"

    def own_functions(self) -> list[CustomMap]:
        """The steps that are functions of the user's own."""
        return [step for chain in self.chains for step in chain if isinstance(step, CustomMap)]

    def differs_in_statistics(self, other: "ValueMap") -> bool:
        """Whether the other map is this one, but for statistics which this one lacks and the other has."""
        return (
            self.lacks_statistics
            and not other.lacks_statistics
            and self.channels == other.channels
            and self.chains == tuple(tuple(map(_without_statistics, chain)) for chain in other.chains)
            and [step.sha256 for step in self.own_functions()] == [step.sha256 for step in other.own_functions()]
        )

    def before_statistics(self, values: np.ndarray) -> np.ndarray:
        """Apply the steps before the first one that lacks its statistics, in float64 (..., C)."""
        before = dataclasses.replace(self, chains=tuple(chain[: _unresolved_in(chain)] for chain in self.chains))
        return before.forward_of(values.astype(np.float64, copy=False), NUMPY)

    def with_statistics(self, means: Sequence[float], deviations: Sequence[float]) -> "ValueMap":
        """Fill in the first step that lacks its statistics, in each chain that has one.

        Args:
            means, deviations: one number for each channel.

        Raises:
            UserError: a channel is constant, so that its deviation is 0 or a rounding error.
        """
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

    def _for_chains(self, work: Callable[[Chain, Any, Operations], Any], values: Any, ops: Operations) -> Any:
        if len(self.chains) == 1:
            return work(self.chains[0], values, ops)
        channels = [values[..., place : place + 1] for place in range(len(self.chains))]
        return ops.concatenate([work(*each, ops) for each in zip(self.chains, channels, strict=True)])


def of_json(values: dict[str, Any]) -> ValueMap:
    """Make a map again from to_json()."""
    chains = tuple(tuple(steps.of(name, arguments) for name, arguments in chain) for chain in values["chains"])
    return ValueMap(chains, tuple(values["channels"]), tuple(values["units"]))


def parse(text: str, flag: str, channels: Sequence[str], units: Sequence[str] = ()) -> ValueMap:
    """Read a map: steps for all channels, or CHANNEL=STEPS;CHANNEL=STEPS for each.

    Args:
        text: value of the flag.
        flag: name of the flag, for error messages.
        channels: names of the channels.
        units: units of the channels, if they are known.

    Raises:
        UserError: a step or a channel is unknown, or a channel has no map.
    """
    named = f"{flag} {text}"
    if "=" not in text:
        return ValueMap((steps.parse(text.strip(), named),), tuple(channels), tuple(units))
    chains: dict[str, Chain] = {}
    for part in text.split(";"):
        channel, _, chain = (piece.strip() for piece in part.partition("="))
        if channel not in channels:
            raise UserError(f"{named}: there is no channel {channel!r}; expected {', '.join(channels)}")
        if channel in chains:
            raise UserError(f"{named}: channel {channel} has two maps; name it once")
        chains[channel] = steps.parse(chain, named)
    if missing := [channel for channel in channels if channel not in chains]:
        raise UserError(f"{named}: no map for {', '.join(missing)}; add {missing[0]}=none, or another one, after a ;")
    return ValueMap(tuple(chains[channel] for channel in channels), tuple(channels), tuple(units))


def _chained(chain: Chain, values: Any, ops: Operations) -> Any:
    for step in chain:
        values = step.forward(values, ops)
    return values


def _wide(values: np.ndarray) -> np.ndarray:
    """The same numbers in the type that they are computed with."""
    return values.astype(np.float32 if values.dtype.type in _EXACT else np.float64, copy=False)


def _outside(chain: Chain, values: np.ndarray) -> int:
    beyond = np.zeros(values.shape, bool)
    for place, step in enumerate(chain):
        if isinstance(step, Range):
            # Without steps before the range, the type of the data rounds its ends as it has rounded the numbers.
            with np.errstate(all="ignore"):
                before = _chained(chain[:place], _wide(values), NUMPY) if place else values
            beyond |= (before < step.low) | (before > step.high)
    return int(np.count_nonzero(beyond))


def _undone(chain: Chain, values: Any, ops: Operations) -> Any:
    for step in reversed(chain):
        values = step.inverse(values, ops)
    return values


def _unresolved_in(chain: Chain) -> int | None:
    places = [number for number, step in enumerate(chain) if isinstance(step, Standard) and not step.means]
    return places[0] if places else None


def _without_statistics(step: Step) -> Step:
    return Standard() if isinstance(step, Standard) else step


def _of_channel(step: Step, place: int) -> Step:
    if isinstance(step, Standard) and len(step.means) > 1:
        return Standard((step.means[place],), (step.deviations[place],))
    return step
