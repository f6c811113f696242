"""The names of the tensors in a checkpoint; it needs neither TensorFlow nor Keras.

networks/<network>/<variable path>            a weight or another variable of a network
optimizers/<network>/<variable path>/<slot>   a slot of its optimizer; <network>/<optimizer>/... if it has several
ema/<network>/<variable path>                 an average over time
loss_scales/<update>/value                    a loss scale; held: updates since its last overflow
state/<name>                                  state that a recipe declares
ranks/<name>                                  the values of all ranks: (ranks, ...), or (global batch, ...)

A variable of several networks is there once, by the name of the first.

Statistics of samples are there by both names: those of all ranks, if there are several, and their means. Networks that
each rank trains for itself, and state per sample, are there as the values of all ranks alone.
"""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

NETWORKS, OPTIMIZERS, EMA, LOSS_SCALES, STATE = "networks", "optimizers", "ema", "loss_scales", "state"
"""kinds: the first word of a name, without that of all ranks"""
OF_NETWORKS = (NETWORKS, OPTIMIZERS, EMA)
"""kinds whose second word is a network"""
_RANKS = "ranks/"


def kind_of(name: str) -> str:
    """The kind of a tensor, of one rank or of all."""
    return name.removeprefix(_RANKS).split("/")[0]


def owner_of(name: str) -> str:
    """The network, update or declared state of a tensor."""
    return name.removeprefix(_RANKS).split("/")[1]


def named_of_ranks(everyones: Mapping[str, T]) -> dict[str, T]:
    """Give the values of all ranks the names that a checkpoint has for them."""
    return {f"{_RANKS}{name}": each for name, each in everyones.items()}


def of_ranks(named: Mapping[str, T]) -> dict[str, T]:
    """The values of all ranks among those of a checkpoint, by the names of one rank's."""
    return {name.removeprefix(_RANKS): each for name, each in named.items() if name.startswith(_RANKS)}


def of_one(named: Mapping[str, T]) -> dict[str, T]:
    """The other values of a checkpoint."""
    return {name: each for name, each in named.items() if not name.startswith(_RANKS)}
