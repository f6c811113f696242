"""Compares variables by their digests: between the ranks, and those that no checkpoint holds with earlier values.

What a run reads and never changes is in no checkpoint: frozen networks, and variables and constants outside of all
networks. The recipe makes them anew at each start.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError, UserError
from hvdgan.networks.layers import is_seed
from hvdgan.training.train_state import TrainState, copy_of

Digests = Mapping[str, str]
"""the SHA-256 in hex of each frozen network and of all that is read outside of the networks, by a description"""


def digests_of(state: TrainState) -> dict[str, str]:
    """The digests of what the graphs of a run read, after these were traced, and no checkpoint holds."""
    networks = {frozen_network(name): digest_of_network(network) for name, network in state.frozen.items()}
    return {**networks, **{name: digest_of([value.numpy()]) for name, value in state.outside.items()}}


def frozen_network(name: str) -> str:
    """The description of a frozen network."""
    return f"the frozen network {name}"


def digest_of_network(network: keras.Model) -> str:
    """The SHA-256 of a network's variables, in their order; their names do not count."""
    return digest_of([copy_of(variable) for variable in network.variables if not is_seed(variable)])


def differing(before: Digests, now: Digests) -> list[str]:
    """The descriptions of what both have, with other values."""
    return [name for name, digest in now.items() if before.get(name, digest) != digest]


def agree_on_frozen(digests: Digests, ranks: Ranks) -> None:
    """Check that what no checkpoint holds is the same on all ranks; every rank calls this."""
    everyones = ranks.gather(dict(digests), "frozen networks")
    for rank, theirs in enumerate(everyones):
        if names := differing(everyones[0], theirs):
            raise UserError(
                f"{names[0]} has other values on rank {rank} than on rank 0{_more(names)}; load it from the same file "
                "on every host, or make it with the initializers of Keras, which --seed seeds"
            )


def refuse_other_frozen(source: Any, before: Digests, now: Digests, *, allowed: bool) -> list[str]:
    """Refuse to resume where what no checkpoint holds has other values than when the checkpoint was made."""
    names = differing(before, now)
    if not names:
        return []
    said = f"{source} was made with other values of {names[0]}{_more(names)}"
    if allowed:
        return [f"warning: {said}"]
    raise UserError(
        f"--resume: {said}; give the same --init-from, restore the file that it is loaded from, start anew in another "
        "--run-dir, or allow it with --allow-changed frozen"
    )


def check_ranks(ranks: Ranks, state: TrainState, done: int) -> None:
    """Compare the weights and slots of all ranks; every rank calls this after the same step."""
    own = {id(each) for each in (*state.statistics().values(), *state.of_local().values())}  # these may differ
    mine = {name: digest_of([copy_of(each)]) for name, each in state.tensors().items() if id(each) not in own}
    whole = hashlib.sha256("".join(mine.values()).encode()).hexdigest()
    if len(set(ranks.gather(whole, "digest of the weights"))) == 1:
        return
    apart = _apart(ranks, mine, "digests of the weights")
    raise RunError(
        f"step {done}: the ranks have drifted apart in {len(apart)} of {len(mine)} tensors: {', '.join(apart[:5])}; "
        "they no longer train one model; resume from the last checkpoint, and look for a recipe that depends on the "
        "rank, or for hardware that computes wrongly"
    )


def check_layer_state(ranks: Ranks, state: TrainState, done: int, stage: str) -> None:
    """Compare the state of layers, other than each rank's statistics, and of the recipe; every rank calls this.

    A checkpoint holds one copy of this state for all ranks, so state that differs between the ranks would be lost.
    """
    variables = state.other_state()
    if ranks.size == 1 or not variables:
        return
    mine = {name: digest_of([copy_of(each)]) for name, each in variables.items()}
    if apart := _apart(ranks, mine, "state of the layers and the recipe"):
        raise UserError(
            f"step {done}, stage {stage}: {apart[0]} differs between the ranks{_more(apart)}, and a checkpoint holds "
            "one copy for all ranks; let it depend on the step alone, or on the whole batch: in a layer by "
            'add_weight(..., aggregation="mean"), in state() by batch.mean or batch.gather (docs/recipes.md)'
        )


def _apart(ranks: Ranks, mine: dict[str, str], what: str) -> list[str]:
    """The names whose digests differ between the ranks."""
    everyones = ranks.gather(mine, what)
    return [name for name in mine if len({each[name] for each in everyones}) > 1]


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if names[1:] else ""


def digest_of(values: Iterable[np.ndarray]) -> str:
    """The SHA-256 in hex of arrays with their types and shapes."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
