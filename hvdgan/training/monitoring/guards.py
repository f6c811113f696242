"""What ends a training that is no longer worth going on with; every rank calls these alike."""

import hashlib
from collections.abc import Callable, Mapping, Sequence

from hvdgan.cli.errors import RunError
from hvdgan.training.monitoring.diagnosis import not_finite
from hvdgan.training.run import Run
from hvdgan.training.state import digests
from hvdgan.training.steps.forward import Data, Metrics
from hvdgan.training.steps.step import StageStep


def check_ranks(run: Run, done: int) -> None:
    """Stop where the ranks' weights or slots have drifted apart.

    Args:
        run: in the middle of its steps.
        done: steps so far.

    Raises:
        RunError: naming the tensors.
    """
    mine = run.state.digests()
    whole = hashlib.sha256("".join(mine.values()).encode()).hexdigest()
    if len(set(run.ranks.gather(whole, "digest of the weights"))) == 1:
        return
    everyones = run.ranks.gather(mine, "digests of the weights")
    apart = [name for name in mine if len({each[name] for each in everyones}) > 1]
    named = ", ".join(apart[:5])
    raise RunError(
        f"step {done}: the ranks have drifted apart in {len(apart)} of {len(mine)} tensors: {named}; "
        "they no longer train one model; go on from the last checkpoint, and look for a recipe that depends on the "
        "rank, or for hardware that computes wrongly"
    )


class LayerState:
    """Checks that what layers keep, other than statistics of samples, is the same on all ranks.

    One copy of it is saved, and every rank goes on with that: what a rank has to itself would be lost.

    Args:
        run: in the middle of its steps.
    """

    def __init__(self, run: Run) -> None:
        self._ranks = run.ranks
        self._variables = run.state.other_state()
        self._stage = ""

    def check(self, done: int, stage: str, *, due: bool) -> None:
        """Compare where it is due, and after the first step of a stage; every rank calls it alike.

        Args:
            done: steps so far.
            stage: that the last of them belongs to.
            due: whether someone is about to look at the networks.

        Raises:
            RunError: on every rank, naming the first variables that differ.
        """
        if self._ranks.size == 1 or not self._variables or not (due or stage != self._stage):
            return
        self._stage = stage
        mine = digests(self._variables)
        everyones = self._ranks.gather(mine, "state of the layers")
        apart = [name for name in mine if len({each[name] for each in everyones}) > 1]
        if not apart:
            return
        more = f" (and {len(apart) - 1} more)" if apart[1:] else ""
        raise RunError(
            f"step {done}, stage {stage}: {apart[0]} differs between the ranks{more}, and one copy is all that a "
            "checkpoint holds; let it depend on the step alone, make it with add_weight(..., "
            'aggregation="mean") if it is a mean over samples, or train on one rank'
        )


class BadUpdates:
    """Counts how often in a row an update was not finite, and was skipped by every rank.

    Args:
        run: in the middle of its steps.
        say: called with a line for people.
        counts: what an earlier one had in `counts`.
    """

    def __init__(self, run: Run, say: Callable[[str], None], counts: Mapping[str, int]) -> None:
        self._run = run
        self._say = say
        self.counts = dict(counts)
        """by <stage>/<update>, expressible in JSON"""

    def count(self, step: StageStep, number: int, data: Data, metrics: Metrics, skipped: Mapping[str, bool]) -> None:
        """Count the updates that were bad; every rank calls it after each step.

        An overflow is not, as long as the loss scale can be lowered. An update that was not due counts neither way.

        Args:
            step: of the stage.
            number: the global step.
            data: of that step.
            metrics: of that step.
            skipped: whether it was, for each update that was due.

        Raises:
            RunError: one was for --max-bad-steps times in a row, naming what is not finite on which rank.
        """
        bad = [each for each in skipped if skipped[each] and metrics.get(f"{each}/loss_scale", 1.0) <= 1.0]
        for update, was in skipped.items():
            if not was:
                self.counts.pop(f"{step.stage.name}/{update}", None)
        for update in bad:
            where = f"step {number}, stage {step.stage.name}, update {update}"
            key = f"{step.stage.name}/{update}"
            self.counts[key] = self.counts.get(key, 0) + 1
            if self.counts[key] >= self._run.config.max_bad_steps:
                raise self._failure(where, not_finite(step, update, number, data), self.counts[key])
            self._say(f"warning: {where}: not finite, and skipped by every rank ({self.counts[key]} in a row)")

    def _failure(self, where: str, mine: Sequence[str], times: int) -> RunError:
        found = self._run.ranks.gather(list(mine), "what is not finite")
        named = [f"rank {rank}: {', '.join(each[:5])}" for rank, each in enumerate(found) if each]
        return RunError(
            f"{where}: the gradients are not finite ({'; '.join(named) or 'where, cannot be seen any more'}), "
            f"{times} step(s) in a row; no rank has applied them; lower the rate, or look at the data; "
            "the last checkpoint is intact"
        )


def without_skipped(metrics: Metrics, skipped: Mapping[str, bool]) -> Metrics:
    """The metrics of a step, less what the losses of updates have computed that were skipped."""
    prefixes = tuple(f"{update}/" for update, was in skipped.items() if was)
    kept = ("/applied", "/loss_scale")
    return {name: value for name, value in metrics.items() if not name.startswith(prefixes) or name.endswith(kept)}
