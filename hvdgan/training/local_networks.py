"""The networks that each rank trains for itself: all their variables, slots and averages differ between the ranks."""

from collections.abc import Collection, Mapping
from typing import Any

import keras
import numpy as np

from hvdgan.distributed.ranks import Ranks

_PREFIX = "local/"


class LocalNetworks:
    """This rank's own variables. A checkpoint holds those of every rank, one after another, (ranks, ...) each.

    A run that resumes on another number of ranks gives rank r those of rank r modulo the number of ranks that saved.

    Args:
        names: names of the networks.
        tensors: all variables of the run, by the names that a checkpoint gives them, which holds those of rank 0.
        ranks: ranks of the run.
    """

    def __init__(self, names: Collection[str], tensors: Mapping[str, keras.Variable], ranks: Ranks) -> None:
        self.names, self._ranks = names, ranks
        of_networks = ("networks/", "optimizers/", "ema/")  # an update's loss scale may have the name of a network
        self._variables = {
            key: variable
            for key, variable in tensors.items()
            if key.startswith(of_networks) and key.split("/")[1] in names
        }

    def own(self) -> dict[str, keras.Variable]:
        """This rank's variables, by the names that a checkpoint gives those of all ranks."""
        return {_PREFIX + name: variable for name, variable in self._variables.items()}

    def whole(self) -> dict[str, np.ndarray]:
        """The values of all ranks, by the names of own(); every rank calls this."""
        return {name: self._ranks.concatenate(variable.numpy()[None]) for name, variable in self.own().items()}

    def whole_variables(self, saved: Mapping[str, Any]) -> dict[str, keras.Variable]:
        """New variables for the values of all ranks, to be read from a checkpoint whose manifest has these tensors."""
        shapes = {name: saved[name]["shape"] if name in saved else (1, *v.shape) for name, v in self.own().items()}
        return {
            name: keras.Variable(np.zeros(shapes[name]), trainable=False, dtype=variable.dtype)
            for name, variable in self.own().items()
        }

    def take(self, whole: Mapping[str, np.ndarray], root: int) -> None:
        """Take this rank's part of what the root knows; the others pass nothing. Every rank calls this."""
        for name, variable in self.own().items():
            rows = self._ranks.broadcast_array(np.array([len(whole.get(name, ()))]), root)[0]
            known = whole.get(name, np.zeros((rows, *variable.shape), variable.dtype))
            variable.assign(self._ranks.broadcast_array(known, root)[self._ranks.rank % rows])
