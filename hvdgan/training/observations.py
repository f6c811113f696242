"""Observes each step: its metrics and times, updates that were skipped, broken files, and plateaus that end a stage."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError
from hvdgan.cli.events import Event, InputSpeed, SkippedFile, StageEnd
from hvdgan.cli.shared_errors import Peers
from hvdgan.data import BadFile, refuse_if_too_many
from hvdgan.distributed.affinity import reading_threads
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe.schedule import Position, is_due
from hvdgan.training.bad_updates import BadUpdates, not_finite, without_skipped
from hvdgan.training.changes import scale_of
from hvdgan.training.memory import forget_peak, used_by
from hvdgan.training.record import Record
from hvdgan.training.resume_point import ResumePoint
from hvdgan.training.run import Run
from hvdgan.training.window import Watch, Window, merge_states

_STEPS = 100
"""number of steps after which the verdict is logged"""
_WARM_UP = 5
"""number of first steps that do not count: they compile, and fill the queue"""
_TOLERATED = 0.1
"""largest fraction of the time that the slowest rank may wait for its images"""


class BadFiles:
    """The broken files that all ranks have met."""

    def __init__(
        self,
        name: str,
        found: Sequence[BadFile],
        total: int,
        max_bad_fraction: float,
        ranks: Peers,
        tell: Callable[[Event], None],
        *,
        saved: Mapping[str, str],
    ) -> None:
        self._name = name
        self._found = found
        self._total = total
        self._max_bad_fraction = max_bad_fraction
        self._ranks = ranks
        self._tell = tell
        self.known = dict(saved)
        """reasons by file name, the same on every rank, as JSON types"""

    def report(self, met: Iterable[BadFile]) -> None:
        """Share new broken files with the other ranks; every rank calls this."""
        self._add(self._found)
        self._found = ()
        for some in self._ranks.gather([bad for bad in met if bad.name not in self.known], "bad files"):
            self._add(some)
        refuse_if_too_many(
            RunError,
            name=self._name,
            bad_files=list(self.known.items()),
            total=self._total,
            max_bad_fraction=self._max_bad_fraction,
        )

    def _add(self, some: Iterable[Sequence[str]]) -> None:
        for name, reason in some:
            if name not in self.known:
                self._tell(SkippedFile(name=name, reason=reason))
                self.known[name] = reason


class InputCheck:
    """Adds up the seconds that a rank waits for images, and logs the verdict once."""

    def __init__(
        self, ranks: Ranks, config: Config, tell: Callable[[Event], None], *, prepared: bool, steps: int = _STEPS
    ) -> None:
        self._ranks = ranks
        self._config = config
        self._tell = tell
        self._prepared = prepared
        self._left = steps
        self._counted = steps - _WARM_UP
        self._sums = [0.0, 0.0]

    def add(self, wait_seconds: float, step_seconds: float) -> None:
        """Add a step; every rank calls this after each step."""
        self._left -= 1
        if 0 <= self._left < self._counted:
            self._sums[0] += wait_seconds
            self._sums[1] += step_seconds
        if self._left == 0:
            mine = [total / self._counted for total in self._sums]
            everyones = self._ranks.gather(mine, "seconds waited for images")
            threads = reading_threads(self._config.pipeline.threads, self._ranks)
            self._tell(verdict(everyones, self._config, threads=threads, prepared=self._prepared))


def verdict(everyones: Sequence[Sequence[float]], config: Config, *, threads: int, prepared: bool) -> InputSpeed:
    """Describe in one line the rank that waits longest; the other ranks wait for it.

    A rank that waits receives images as fast as its pipeline reads them; the rest of a step is computing.
    """
    rank, (waited, total) = max(enumerate(everyones), key=lambda each: each[1][0])
    part = waited / max(total, 1e-9)
    images = config.global_batch_size
    if part <= _TOLERATED:
        spent = f"input keeps up: {part:.0%} of the first {_STEPS} steps was spent waiting for images"
        return InputSpeed(is_bottleneck=False, text=spent)
    remedies = [] if prepared else ["pack the data once (python -m hvdgan.prepare)"]
    if config.pipeline.cache == "none":
        remedies.append("cache decoded images (--pipeline.cache memory)")
    remedies.append(f"if there are idle cores, read with more threads (--pipeline.threads, now {threads})")
    text = (
        f"input is the bottleneck: rank {rank} waits for images {part:.0%} of the time; the pipeline reads "
        f"{images / max(total, 1e-9):.0f} images/s, and the steps could take "
        f"{images / max(total - waited, 1e-9):.0f}; {'; '.join(remedies)}"
    )
    return InputSpeed(is_bottleneck=True, text=text)


class Meter:
    """Collects the metrics of each step and logs their means."""

    def __init__(
        self, ranks: Ranks, config: Config, record: Record, bad_files: BadFiles, state: dict[str, list[float]] | None
    ) -> None:
        self._ranks = ranks
        self._config = config
        self._record = record
        self._bad_files = bad_files
        self._window = Window(state)

    def add(self, values: dict[str, Any]) -> None:
        """Add one step's metrics by name."""
        self._window.add(values)

    def state(self) -> dict[str, list[float]]:
        """Return what a resumed run needs of the steps since the last log line, as JSON types."""
        return self._window.state()

    def log(self, done: int, at: Position, bad_files: Sequence[BadFile]) -> dict[str, float]:
        """Log the means since the last log line; every rank calls this after the same step."""
        own = self._window.means()
        if is_due(done, self._config.log_every):  # a record at the end of the run leaves the window to a resumed run
            self._window = Window()
        everyones = self._ranks.gather(own, "metrics")
        if any(each.keys() != own.keys() for each in everyones):
            raise RunError(f"step {done}: the ranks have different metrics: {[sorted(each) for each in everyones]}")
        weighted = list(zip(self._ranks.weights(self._config.global_batch_size), everyones, strict=True))
        values = {name: sum(weight * each[name] for weight, each in weighted) / self._ranks.size for name in own}
        if bad := [name for name, value in values.items() if name.endswith("/loss") and not math.isfinite(value)]:
            raise RunError(f"step {done}, stage {at.stage.name}: {bad[0]} is not finite")
        images_per_sec = self._config.global_batch_size / values["step_seconds"]
        self._bad_files.report(bad_files)
        extra = {"images_per_sec": images_per_sec, "bad_files": len(self._bad_files.known), **_longest_wait(everyones)}
        self._record.write(done, at.stage.name, at.stage_step + 1, {**extra, **values})
        return values


def _longest_wait(everyones: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the rank that waits longest for its images, and its seconds per step; nothing of a single rank."""
    waits = [each["wait_seconds"] for each in everyones]
    longest = max(waits)
    return {"wait_seconds_max": longest, "wait_rank": waits.index(longest)} if len(waits) > 1 else {}


class Observations:
    """Everything that the steps of a run have shown so far; a resumed run continues with it."""

    def __init__(self, run: Run, resume_point: ResumePoint, record: Record) -> None:
        config, ranks, source, progress = run.config, run.ranks, run.source, resume_point.progress
        self._run = run
        self._record = record
        self._weights = ranks.weights(config.global_batch_size)
        self._saved = part_of_rank(ranks, progress.get("ranks", []))
        """this rank's part of the observations of the interrupted run"""
        max_bad, files, tell = config.max_bad_fraction, progress.get("bad_files", {}), record.tell
        self._bad_files = BadFiles(source.name, source.bad_files, source.total, max_bad, ranks, tell, saved=files)
        self._bad_updates = BadUpdates(ranks, config.max_bad_steps, tell, progress.get("bad_updates", {}))
        self._meter = Meter(ranks, config, record, self._bad_files, self._saved.get("window"))
        self._input_check = InputCheck(ranks, config, tell, prepared=source.prepared)
        self._watch = Watch(None)
        for line in source.remarks:
            record.say(line)

    def begin_stage(self, at: Position) -> None:
        """Follow the metric that may end the stage; a stage that is resumed continues with what was saved of it."""
        self._watch = Watch(at.stage.until, self._saved.get("watch") if at.stage_step else None)
        forget_peak()

    def add(
        self,
        step: int,
        at: Position,
        data: dict[str, tf.Tensor],
        metrics: Mapping[str, Any],
        skipped: Mapping[str, bool],
        seconds: Mapping[str, float],
        newest: int,
    ) -> None:
        """Add one step; every rank calls this after each step. The stage ends here if its metric no longer improves."""
        stage, compute = at.stage.name, self._run.steps[at.index]
        self._input_check.add(seconds["wait_seconds"], seconds["step_seconds"])
        diagnose = functools.partial(not_finite, compute, step=step, data=data)
        self._bad_updates.count(stage, step, metrics, skipped, diagnose, newest)
        kept = without_skipped(metrics, skipped)
        self._meter.add({**kept, **seconds})
        self._watch.add(kept)
        self._record.advance(stage)
        if self._watch.is_over(at.stage_step + 1, self._run.ranks, self._weights):
            self._end_stage_early(at)

    def add_after_failure(
        self, step: int, at: Position, metrics: Mapping[str, Any], skipped: Mapping[str, bool]
    ) -> None:
        """Count and log the skipped updates of a step without the other ranks, because the run has failed already."""
        tell = functools.partial(self._record.tell_alone, rank=self._run.ranks.rank)
        self._bad_updates.count_alone(at.stage.name, step, metrics, skipped, tell)

    def end_stage(self, at: Position) -> None:
        """Log the memory that the stage has taken; every rank calls this after the last step of a stage or a run."""
        self._record.say(used_by(at.stage, self._run.ranks))

    def log(self, done: int, at: Position, bad_files: Sequence[BadFile]) -> dict[str, float]:
        """Log the means since the last log line; see Meter.log. Every rank calls this."""
        return self._meter.log(done, at, bad_files)

    def report(self, bad_files: Sequence[BadFile]) -> None:
        """Log broken files that an evaluation has met; every rank calls this."""
        self._bad_files.report(bad_files)

    def evaluated(self, values: Mapping[str, float]) -> None:
        """Add the figures of an evaluation, on which a plateau may end the stage; every rank calls this."""
        self._watch.add(dict(values))

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs besides the tensors, as JSON types; every rank calls this."""
        run = self._run
        mine = {
            "window": self._meter.state(),
            "watch": self._watch.state(),
            "weight": self._weights[run.ranks.rank],
        }
        # Copies, because a thread writes them during the next steps.
        return {
            **run.schedule.progress(),
            "bad_files": dict(self._bad_files.known),
            "bad_updates": dict(self._bad_updates.counts),
            "evaluated": run.evaluated and len(run.evaluated),
            "scale": scale_of(run),
            "ranks": run.ranks.gather(mine, "progress"),
        }

    def _end_stage_early(self, at: Position) -> None:
        if at.stage_step + 1 == at.stage.steps or at.stage.until is None:
            return
        self._run.schedule.end_early(at)
        stage, last = at.stage, self._run.last_step
        planned, metric = stage.steps, at.stage.until.metric
        self._record.tell(
            StageEnd(stage=stage.name, steps=at.stage_step + 1, planned=planned, metric=metric, last_step=last)
        )


def part_of_rank(ranks: Ranks, everyones: list[dict[str, Any]]) -> dict[str, Any]:
    """Return this rank's part of a saved state; the mean of all parts if the number of ranks has changed."""
    if not everyones:
        return {}
    if len(everyones) == ranks.size:
        return everyones[ranks.rank]
    weights = [each["weight"] for each in everyones]
    watch = everyones[0]["watch"]
    if watch:
        watch = {**watch, "window": merge_states([each["watch"]["window"] for each in everyones], weights)}
    return {"window": merge_states([each["window"] for each in everyones], weights), "watch": watch}
