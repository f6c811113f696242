"""Divides the state of the training loop in a checkpoint among the ranks."""

from typing import Any

from hvdgan.distributed.ranks import Ranks
from hvdgan.training.window import merge_states


def part_of_rank(ranks: Ranks, everyones: list[dict[str, Any]]) -> dict[str, Any]:
    """Return this rank's part of a saved state; the mean of all parts if the number of ranks has changed.

    Args:
        ranks: ranks of this run.
        everyones: parts of the ranks of the interrupted run; empty in a new run.
    """
    if not everyones:
        return {}
    if len(everyones) == ranks.size:
        return everyones[ranks.rank]
    weights = [each.get("weight", 1.0) for each in everyones]
    watch = everyones[0]["watch"]
    if watch:
        watch = {**watch, "window": merge_states([each["watch"]["window"] for each in everyones], weights)}
    return {"window": merge_states([each["window"] for each in everyones], weights), "watch": watch}
