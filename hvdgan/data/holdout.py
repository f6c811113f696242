"""Holds samples out of training: the choice depends on the data alone and is the same on every machine."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from hvdgan.data.samples import Samples
from hvdgan.data.sharing import pack, share_out_ranges, unpack
from hvdgan.errors import UserError
from hvdgan.errors.shared_errors import ALONE, Peers

_DEFAULT_FRACTION = 0.05


def hold_out(source: Samples, fraction: float, peers: Peers = ALONE) -> "tuple[Samples, HeldOut | None]":
    """Split a source into samples to train on and samples held out, None if fraction is 0, by hashes of their keys.

    By names and pixels, adding samples moves no other sample, and equal pictures of an array stay together.
    """
    if not fraction:
        return source, None
    places = _places_of(source, peers)
    held_out = np.flatnonzero(places < fraction)
    if (count := len(held_out)) in (0, len(source)):
        raise _TooFew(
            f"--holdout {fraction:g}: {count} of {len(source)} samples of {source.name} would be held out; hold out at "
            "least one sample, and leave at least one to train on"
        )
    return source.chosen(np.flatnonzero(places >= fraction)), HeldOut(source.chosen(held_out), places[held_out])


def split(
    parts: Mapping[str, Samples], fraction: float | None, peers: Peers, *, is_evaluated: bool
) -> "tuple[dict[str, Samples], dict[str, HeldOut]]":
    """Split the domains of a run as --holdout says; by default, hold out 5 % for a recipe that has evaluate().

    Without --holdout, too few samples are not an error: nothing is held out of any domain, and a remark says so.
    """
    if fraction and not is_evaluated:
        raise UserError(f"--holdout {fraction:g}: the recipe has no evaluate(); leave the flag out")
    share = fraction if fraction is not None else _DEFAULT_FRACTION * is_evaluated
    try:
        found = {name: hold_out(each, share, peers) for name, each in parts.items()}
    except _TooFew as error:
        if fraction is not None:
            raise
        (first, source), line = next(iter(parts.items())), f"no evaluations: {str(error).partition(';')[0]}"
        return {**parts, first: source.replace(remarks=[*source.remarks, line])}, {}
    held_out = {name: held for name, (_, held) in found.items() if held is not None}
    return {name: training for name, (training, _) in found.items()}, held_out


def _places_of(source: Samples, peers: Peers) -> np.ndarray:
    """The place of each sample in [0, 1), float64 (N,); every rank computes a part of them."""
    found = share_out_ranges(
        len(source),
        # A pseudo-random number from a digest.
        lambda some: pack(np.array([int.from_bytes(source.digest(index)[:8], "big") / 2**64 for index in some])),
        peers,
        f"--data {source.name}: samples held out",
        length=-(-len(source) // peers.size),
    )
    return np.concatenate([unpack(each, np.float64) for each in found])


class _TooFew(UserError):
    """No sample would be held out, or none would be left."""


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The samples held out, and their places in [0, 1), float64 (N,)."""

    samples: Samples
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.samples)

    def some(self, most: int) -> Samples:
        """At most `most` samples, or all for 0, in the same order; a smaller choice is part of a larger one."""
        if not most or most >= len(self):
            return self.samples
        return self.samples.chosen(np.sort(np.argsort(self.places, kind="stable")[:most]))
