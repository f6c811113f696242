"""The state of the training loop in a checkpoint: collected from all ranks, and divided among them again."""

from typing import Any

from hvdgan.distributed.ranks import Ranks
from hvdgan.training.building.run import Run
from hvdgan.training.monitoring.bad_files import BadFiles
from hvdgan.training.monitoring.bad_updates import BadUpdates
from hvdgan.training.monitoring.meter import Meter
from hvdgan.training.monitoring.plateau import Watch
from hvdgan.training.monitoring.window import merge_states


def collect(run: Run, meter: Meter, watch: Watch, bad_files: BadFiles, bad_updates: BadUpdates) -> dict[str, Any]:
    """Return what a resumed loop needs besides the tensors, as JSON types; every rank calls this.

    Args:
        run: run that is saved.
        meter: metrics since the last log line.
        watch: plateau of the stage.
        bad_files: broken files.
        bad_updates: updates that were not finite.
    """
    ranks = run.ranks
    weight = ranks.weights(run.config.global_batch_size)[ranks.rank]
    everyones = ranks.gather({"window": meter.state(), "watch": watch.state(), "weight": weight}, "progress")
    # Copies, because a thread writes them during the next steps.
    return {
        **run.schedule.progress(),
        "bad_files": dict(bad_files.known),
        "bad_updates": dict(bad_updates.counts),
        "evaluated": run.evaluated and len(run.evaluated),
        "ranks": everyones,
    }


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
