"""Stops a run whose ranks no longer have the same weights, slots or layer state."""

import hashlib
from collections.abc import Mapping

import keras

from hvdgan.cli.errors import RunError
from hvdgan.distributed.ranks import Ranks
from hvdgan.training.state import TrainState, copy_of


def check_ranks(ranks: Ranks, state: TrainState, done: int) -> None:
    """Compare the weights and slots of all ranks; every rank calls this after the same step."""
    own = {id(variable) for variable in state.statistics.variables()}  # these may differ
    mine = _digests({name: variable for name, variable in state.tensors().items() if id(variable) not in own})
    whole = hashlib.sha256("".join(mine.values()).encode()).hexdigest()
    if len(set(ranks.gather(whole, "digest of the weights"))) == 1:
        return
    everyones = ranks.gather(mine, "digests of the weights")
    apart = [name for name in mine if len({each[name] for each in everyones}) > 1]
    raise RunError(
        f"step {done}: the ranks have drifted apart in {len(apart)} of {len(mine)} tensors: {', '.join(apart[:5])}; "
        "they no longer train one model; resume from the last checkpoint, and look for a recipe that depends on the "
        "rank, or for hardware that computes wrongly"
    )


class LayerState:
    """Compares the state of layers, other than statistics of samples, between the ranks.

    A checkpoint holds one copy of this state for all ranks, so state that differs between the ranks would be lost.
    """

    def __init__(self, ranks: Ranks, state: TrainState) -> None:
        self._ranks = ranks
        self._variables = state.other_state()
        self._stage = ""

    def check(self, done: int, stage: str, *, due: bool) -> None:
        """Compare if `due`, and after the first step of each stage; every rank calls this after each step."""
        if self._ranks.size == 1 or not self._variables or not (due or stage != self._stage):
            return
        self._stage = stage
        mine = _digests(self._variables)
        everyones = self._ranks.gather(mine, "state of the layers")
        apart = [name for name in mine if len({each[name] for each in everyones}) > 1]
        if not apart:
            return
        more = f" (and {len(apart) - 1} more)" if apart[1:] else ""
        raise RunError(
            f"step {done}, stage {stage}: {apart[0]} differs between the ranks{more}, and a checkpoint holds one copy "
            'for all ranks; let it depend on the step alone, make it with add_weight(..., aggregation="mean") if it is '
            "a mean over samples, or train on one rank"
        )


def _digests(variables: Mapping[str, keras.Variable]) -> dict[str, str]:
    """The SHA-256 of each variable's value."""
    return {name: hashlib.sha256(copy_of(variable).tobytes()).hexdigest() for name, variable in variables.items()}
