"""The networks as a loss sees them: owned ones train, all others run without touching their state."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import keras


class Nets:
    """Networks by attribute: `nets.generator(latents)`.

    Args:
        networks: the recipe's networks by name.
        owned: the names whose statistics (BatchNorm's and the like) a call may move.
        training: whether networks run in training mode.
        values: for a name, (variable, value) pairs that stand in for the network's own variables.
    """

    def __init__(
        self,
        networks: Mapping[str, keras.Model],
        *,
        owned: Collection[str] = (),
        training: bool,
        values: Mapping[str, Sequence[tuple[keras.Variable, Any]]] | None = None,
    ) -> None:
        self._networks = networks
        self._owned = owned
        self._training = training
        self._values = values or {}

    def __getattr__(self, name: str) -> Any:
        if name not in self._networks:
            raise AttributeError(f"there is no network {name}; networks() returns {', '.join(self._networks)}")

        def call(*inputs: Any, **keywords: Any) -> Any:
            # A stateless scope takes a network's assignments to its own variables and drops them.
            scope = nullcontext() if name in self._owned else keras.StatelessScope(self._values.get(name))
            with scope:
                return self._networks[name](*inputs, training=self._training, **keywords)

        return call
