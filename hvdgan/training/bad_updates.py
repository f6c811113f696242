"""Counts updates that were skipped because they were not finite, and stops a run that has too many in a row."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hvdgan.cli.errors import RunError
from hvdgan.cli.events import Event, SkippedUpdate
from hvdgan.distributed.ranks import Ranks
from hvdgan.training.compiler import Compiler
from hvdgan.training.gradients import Data, MicroBatches, used
from hvdgan.training.step import StageStep


class BadUpdates:
    """Counts for each update how often in a row it was not finite and skipped by every rank."""

    def __init__(
        self, ranks: Ranks, max_bad_steps: int, tell: Callable[[Event], None], counts: Mapping[str, int]
    ) -> None:
        self._ranks = ranks
        self._max_bad_steps = max_bad_steps
        self._tell = tell
        self.counts = dict(counts)
        """number of bad updates in a row by <stage>/<update>, as JSON types"""

    def count(
        self,
        stage: str,
        step: int,
        metrics: Mapping[str, Any],
        skipped: Mapping[str, bool],
        diagnose: Callable[[str], Sequence[str]],
        newest: int,
    ) -> None:
        """Count the bad updates of a step; every rank calls this after each step.

        A float16 overflow does not count while the loss scale can still be lowered. The count of an update that was not
        due stays as it is.
        """
        for update, times in self._counted(stage, metrics, skipped):
            if times >= self._max_bad_steps:
                where = f"step {step}, stage {stage}, update {update}"
                raise self._failure(where, diagnose(update), newest, times)
            self._tell(SkippedUpdate(step=step, stage=stage, update=update, times=times))

    def count_alone(
        self,
        stage: str,
        step: int,
        metrics: Mapping[str, Any],
        skipped: Mapping[str, bool],
        tell: Callable[[Event], None],
    ) -> None:
        """Count and log the bad updates of a step without the other ranks, because the run has failed already."""
        for update, times in self._counted(stage, metrics, skipped):
            tell(SkippedUpdate(step=step, stage=stage, update=update, times=times))

    def _counted(
        self, stage: str, metrics: Mapping[str, Any], skipped: Mapping[str, bool]
    ) -> Iterator[tuple[str, int]]:
        """Yield each bad update with the number of times in a row that it was bad."""
        bad = [each for each in skipped if skipped[each] and metrics.get(f"{each}/loss_scale", 1.0) <= 1.0]
        for update, was_skipped in skipped.items():
            if not was_skipped:
                self.counts.pop(f"{stage}/{update}", None)
        for update in bad:
            key = f"{stage}/{update}"
            self.counts[key] = self.counts.get(key, 0) + 1
            yield update, self.counts[key]

    def _failure(self, where: str, mine: Sequence[str], newest: int, times: int) -> RunError:
        found = self._ranks.gather(list(mine), "what is not finite")
        named = "; ".join(f"rank {rank}: {', '.join(each[:5])}" for rank, each in enumerate(found) if each)
        return RunError(
            f"{where}: loss or gradients are not finite ({named or 'all are finite'}; computed again with the weights "
            f"after step {newest}), {times} step(s) in a row; no rank has applied them; lower the learning rate, or "
            "check the data; the last checkpoint is intact"
        )


def without_skipped(metrics: Mapping[str, Any], skipped: Mapping[str, bool]) -> dict[str, Any]:
    """Drop the metrics that the losses of skipped updates have computed."""
    prefixes = tuple(f"{update}/" for update, was_skipped in skipped.items() if was_skipped)
    kept = ("/applied", "/loss_scale")
    return {name: value for name, value in metrics.items() if not name.startswith(prefixes) or name.endswith(kept)}


def not_finite(stage_step: StageStep, update: str, step: int, data: Data) -> list[str]:
    """Compute an update's gradients on this rank again, and name what is not finite."""
    forward = stage_step.forward
    (chosen,) = (each for each in stage_step.stage.updates if each.name == update)

    @tf.function(autograph=False)
    def look(part: tf.Tensor) -> tf.Tensor:
        micro_batches = MicroBatches(forward, tf.constant(step, tf.int64), used(data), Compiler())
        gradients, metrics = micro_batches.one(chosen, part)
        return tf.stack([tf.reduce_all(tf.math.is_finite(each)) for each in (metrics["loss"], *gradients)])

    verdicts = [look(tf.constant(part)).numpy() for part in range(forward.micro_batches)]
    names = ["loss", *(variable.path for variable in forward.variables(chosen))]
    return [name for name, finite in zip(names, zip(*verdicts, strict=True), strict=True) if not all(finite)]
