"""Networks that have variables in common, such as two generators with the same first layers."""

from collections.abc import Iterable, Mapping

import keras


class Sharing:
    """Which of some networks share variables: these are trained, saved and averaged once."""

    def __init__(self, networks: Mapping[str, keras.Model]) -> None:
        self._ids = {name: {id(variable) for variable in network.variables} for name, network in networks.items()}

    def relatives(self, names: Iterable[str]) -> set[str]:
        """These networks, and those that have a variable of theirs."""
        names = {*names}
        return names | {name for name, own in self._ids.items() if own & self._of(names)}

    def covered(self, names: Iterable[str]) -> set[str]:
        """These networks, and those of which they have every variable."""
        names = {*names}
        return names | {name for name, own in self._ids.items() if own <= self._of(names)}

    def _of(self, names: Iterable[str]) -> set[int]:
        return set().union(*(self._ids.get(name, ()) for name in names))


def parts(networks: Mapping[str, keras.Model], names: Iterable[str]) -> dict[str, list[keras.Variable]]:
    """For each of these networks the trainable variables that none before it has."""
    found: dict[str, list[keras.Variable]] = {}
    seen = set[int]()
    for name in names:
        found[name] = [each for each in networks[name].trainable_variables if id(each) not in seen]
        seen |= {id(each) for each in found[name]}
    return found
