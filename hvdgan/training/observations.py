"""Observes each step: its metrics and times, updates that were skipped, broken files, and plateaus that end a stage."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median, median_low
from typing import Any

import tensorflow as tf

from hvdgan.data import BadFile, refuse_if_too_many
from hvdgan.data.domains import bad_files_of
from hvdgan.distributed.affinity import reading_threads
from hvdgan.distributed.devices import everyones_devices
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError
from hvdgan.recipe.schedule import Position, is_due
from hvdgan.runs.events import Event, InputSpeed, SkippedFile, SkippedUpdate, SlowRank, StageEnd
from hvdgan.settings.config import Config
from hvdgan.training.build import Run
from hvdgan.training.memory import forget_peak
from hvdgan.training.record import Record
from hvdgan.training.resume_point import ResumePoint
from hvdgan.training.step import Data, StageStep, used
from hvdgan.training.window import PlateauWatch, Window, merge_states

_STEPS = 100
"""number of steps after which a log says whether the input keeps up, but not the first log: the queue fills first"""
_TOLERATED = 0.1
"""largest fraction of the time that the slowest rank may wait for its images"""
_SLOW, _LOGS = 1.2, 3
"""times the median of the ranks from which on a rank is slow, and logs in a row after which it is named"""
_OWN = {"compute_seconds": "computes", "wait_seconds": "waits for its data"}
"""parts of a step that are a rank's own, and what it does in them"""


class BadFiles:
    """The broken files that all ranks have met."""

    def __init__(
        self,
        name: str,
        found: Sequence[BadFile],
        total: int,
        max_bad_fraction: float,
        tell: Callable[[Event], None],
        *,
        saved: Mapping[str, str],
    ) -> None:
        self._name, self._found, self._total, self._max_bad_fraction = name, found, total, max_bad_fraction
        self._tell = tell
        self.known = dict(saved)
        """reasons by file name, the same on every rank, as JSON types"""

    def new(self, met: Iterable[BadFile]) -> list[BadFile]:
        """Those of the broken files that are not known yet; add() takes what all ranks have found."""
        return [bad for bad in met if bad.name not in self.known]

    def add(self, everyones: Iterable[Iterable[Sequence[str]]]) -> None:
        """Add the new broken files of all ranks; every rank calls this."""
        for some in (self._found, *everyones):
            self._add(some)
        self._found = ()
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


class BadUpdates:
    """Counts for each update how often in a row it was not finite and skipped by every rank."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        """number of bad updates in a row by <stage>/<update>, as JSON types"""

    def add(self, stage: str, metrics: Mapping[str, Any], skipped: Mapping[str, bool]) -> Iterator[tuple[str, int]]:
        """Add a step, and yield each bad update with the number of times in a row that it was bad.

        A float16 overflow does not count while the loss scale can still be lowered. The count of an update that was not
        due stays as it is.
        """
        for update, was_skipped in skipped.items():
            key = f"{stage}/{update}"
            if not was_skipped:
                self.counts.pop(key, None)
            elif metrics.get(f"{update}/loss_scale", 1.0) <= 1.0:
                self.counts[key] = self.counts.get(key, 0) + 1
                yield update, self.counts[key]


def without_skipped(metrics: Mapping[str, Any], skipped: Mapping[str, bool]) -> dict[str, Any]:
    """Drop the metrics that the losses of skipped updates have computed."""
    prefixes = tuple(f"{update}/" for update, was_skipped in skipped.items() if was_skipped)
    kept = ("/applied", "/loss_scale")
    return {name: value for name, value in metrics.items() if not name.startswith(prefixes) or name.endswith(kept)}


def not_finite(stage_step: StageStep, update: str, step: int, data: Data) -> list[str]:
    """Compute an update's gradients on this rank again, and name what is not finite."""
    (chosen,) = (each for each in stage_step.stage.updates if each.name == update)

    @tf.function(autograph=False)
    def look(number: tf.Tensor) -> tf.Tensor:
        found = stage_step.on_micro_batch(chosen, tf.constant(step, tf.int64), used(data), number)
        return tf.stack([tf.reduce_all(tf.math.is_finite(each)) for each in (found.metrics["loss"], *found.gradients)])

    results = [look(tf.constant(number)).numpy() for number in range(stage_step.micro_batches)]
    names = ["loss", *(variable.path for variable in stage_step.variables(chosen))]
    return [name for name, finite in zip(names, zip(*results, strict=True), strict=True) if not all(finite)]


def input_speed(everyones: Sequence[Sequence[float]], config: Config, *, threads: int, prepared: bool) -> InputSpeed:
    """Describe in one line the rank that waits longest; the other ranks wait for it.

    A rank that waits receives images as fast as its pipeline reads them; the rest of a step is computing.
    """
    rank, (waited, total) = max(enumerate(everyones), key=lambda each: each[1][0])
    part = waited / max(total, 1e-9)
    images = config.global_batch_size
    if part <= _TOLERATED:
        spent = f"input keeps up: {part:.0%} of the time is spent waiting for images"
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


def _parts(means: Mapping[str, float]) -> dict[str, float]:
    """Split a rank's mean step into its parts; on a GPU and with --deterministic only the wait for data is known."""
    if "reduce_seconds" not in means:
        return {"wait_seconds": means["wait_seconds"]}
    wait, reduce = means["wait_seconds"], means["reduce_seconds"]
    return {"compute_seconds": means["step_seconds"] - wait - reduce, "wait_seconds": wait, "reduce_seconds": reduce}


class Speeds:
    """Compares the times of the ranks' steps, and names a rank for which the others wait.

    A step takes all ranks equally long, because they reduce gradients together; without the time in collectives the
    slow rank takes longest. Each is compared with the median, of two ranks the faster one, with the time that the
    exchange itself takes added to both: a rank is slow if it slows down the steps.
    """

    def __init__(self, ranks: Ranks, weights: Sequence[float], tell: Callable[[Event], None]) -> None:
        self._ranks, self._weights, self._tell = ranks, weights, tell
        self._logs: Counter[int] = Counter()
        """logs in a row in which each rank was slow, or below 0 in which it was not"""
        self._slow: set[int] = set()

    def add(self, step: int, everyones: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Add the means of each rank, and return how the parts of a step differ over the ranks; every rank calls it."""
        parts = [_parts(each) for each in everyones]
        if len(parts) == 1:
            return {}
        columns = {name: [each[name] for each in parts] for name in parts[0]}
        found = {
            f"{name}_{how.__name__}": how(column) for name, column in columns.items() for how in (min, median, max)
        }
        if "compute_seconds" not in columns:
            return found
        # An elastic run's ranks may have different numbers of samples.
        own = [{name: each[name] / weight for name in _OWN} for each, weight in zip(parts, self._weights, strict=True)]
        usual = {name: median_low(each[name] for each in own) for name in _OWN}
        exchange = min(columns["reduce_seconds"])  # what the slowest rank, for which the others wait, spends on it
        sums = [exchange + sum(each.values()) for each in own]
        middle = max(median_low(sums), 1e-9)
        for rank, ratio in enumerate(each / middle for each in sums):
            logs = self._logs[rank]
            self._logs[rank] = max(logs, 0) + 1 if ratio > _SLOW else min(logs, 0) - 1
            if self._logs[rank] == -_LOGS:
                self._slow.discard(rank)
            elif self._logs[rank] == _LOGS and rank not in self._slow:
                self._slow.add(rank)
                part = max(_OWN, key=lambda name: own[rank][name] - usual[name])
                self._name(step, rank, ratio, part, own[rank][part], usual[part])
        return {**found, "slowest_rank": sums.index(max(sums))}

    def _name(self, step: int, rank: int, ratio: float, part: str, seconds: float, usual: float) -> None:
        device = everyones_devices(self._ranks)[rank]
        text = (
            f"step {step}: rank {rank} on {device.host} ({device}) is {ratio:.2f} times as slow as the median of the "
            f"ranks, in {_LOGS} logs in a row: it {_OWN[part]} {1e3 * seconds:.3g} ms a step, the median is "
            f"{1e3 * usual:.3g} ms; the others wait for it"
        )
        host, ratio = device.host, round(ratio, 3)
        self._tell(SlowRank(text=text, step=step, rank=rank, host=host, device=str(device), ratio=ratio, part=part))


class Observations:
    """Everything that the steps of a run have shown so far; a resumed run continues with it."""

    def __init__(self, run: Run, resume_point: ResumePoint, record: Record) -> None:
        config, ranks, source, progress = run.config, run.ranks, run.source, resume_point.progress
        self._run, self._record = run, record
        self._weights = ranks.weights(config.global_batch_size)
        self._saved = part_of_rank(ranks, progress.get("ranks", []))
        """this rank's part of the observations of the interrupted run"""
        max_bad, files, tell = config.max_bad_fraction, progress.get("bad_files", {}), record.tell
        found, total = bad_files_of(source), sum(each.total for each in source.domains.values())
        self._bad_files = BadFiles(source.name, found, total, max_bad, tell, saved=files)
        self._bad_updates = BadUpdates(progress.get("bad_updates", {}))
        self._window = Window(self._saved.get("window"))
        self._speeds = Speeds(ranks, self._weights, tell)
        self._input_from: float = resume_point.step + max(_STEPS, 2 * config.log_every)
        """step whose log says whether the input keeps up"""
        self._watch = PlateauWatch(None)
        for line in source.remarks:
            record.say(line)

    def begin_stage(self, at: Position) -> None:
        """Follow the metric that may end the stage; a stage that is resumed continues with what was saved of it."""
        self._watch = PlateauWatch(at.stage.until, self._saved.get("watch") if at.stage_step else None)
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
        for update, times in self._bad_updates.add(stage, metrics, skipped):
            if times >= self._run.config.max_bad_steps:
                mine = not_finite(compute, update, step, data)
                found = self._run.ranks.gather(mine, "what is not finite")
                named = "; ".join(f"rank {rank}: {', '.join(each[:5])}" for rank, each in enumerate(found) if each)
                raise RunError(
                    f"step {step}, stage {stage}, update {update}: loss or gradients are not finite "
                    f"({named or 'all are finite'}; computed again with the weights after step {newest}), {times} "
                    "step(s) in a row; no rank has applied them; lower the learning rate, or check the data; the last "
                    "checkpoint is intact"
                )
            self._record.tell(SkippedUpdate(step=step, stage=stage, update=update, times=times))
        kept = without_skipped(metrics, skipped)
        self._window.add({**kept, **seconds})
        self._watch.add(kept)
        self._record.advance(stage)
        if self._watch.is_over(at.stage_step + 1, self._run.ranks, self._weights):
            self._end_stage_early(at)

    def log(self, done: int, at: Position, bad_files: Sequence[BadFile]) -> dict[str, float]:
        """Log the means since the last log line; every rank calls this after the same step."""
        config, ranks = self._run.config, self._run.ranks
        own = self._window.means()
        if is_due(done, config.log_every):  # a record at the end of the run leaves the window to a resumed run
            self._window = Window()
        # Of the names a digest, so that a rank sends few bytes at a log.
        digest = hashlib.sha256("\n".join(own).encode()).hexdigest()[:16]
        mine = [digest, self._bad_files.new(bad_files), *own.values()]
        digests, everyones_bad_files, *columns = zip(*ranks.gather(mine, "metrics"), strict=False)
        if len(set(digests)) > 1:
            raise RunError(f"step {done}: the ranks have different metrics: {ranks.gather([*own], 'their names')}")
        everyones = [dict(zip(own, each, strict=True)) for each in zip(*columns, strict=True)]
        weighted = list(zip(self._weights, everyones, strict=True))
        values = {name: sum(weight * each[name] for weight, each in weighted) / ranks.size for name in own}
        images_per_sec = config.global_batch_size / values["step_seconds"]
        self._bad_files.add(everyones_bad_files)
        extra = {"images_per_sec": images_per_sec, "bad_files": len(self._bad_files.known)}
        extra |= self._speeds.add(done, everyones)
        self._record.write(done, at.stage.name, at.stage_step + 1, {**extra, **values})
        if done >= self._input_from:
            self._input_from = math.inf
            waits = [(each["wait_seconds"], each["step_seconds"]) for each in everyones]
            threads = reading_threads(config.pipeline.threads, ranks)
            self._record.tell(input_speed(waits, config, threads=threads, prepared=self._run.source.prepared))
        return values

    def add_evaluation(self, values: Mapping[str, float], bad_files: Sequence[BadFile]) -> None:
        """Add the figures of an evaluation, on which a plateau may end the stage, and broken files that it has met."""
        self._bad_files.add(self._run.ranks.gather(self._bad_files.new(bad_files), "bad files"))
        self._watch.add(dict(values))

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs besides the tensors, as JSON types; every rank calls this."""
        run = self._run
        mine = {
            "window": self._window.state(),
            "watch": self._watch.state(),
            "weight": self._weights[run.ranks.rank],
        }
        # Copies, because a thread writes them during the next steps.
        return {
            **run.schedule.progress(),
            "bad_files": dict(self._bad_files.known),
            "bad_updates": dict(self._bad_updates.counts),
            "evaluated": run.evaluator and run.evaluator.count,
            "scale": run.comparison and run.comparison.scale(),
            "ranks": run.ranks.gather(mine, "progress"),
        }

    def _end_stage_early(self, at: Position) -> None:
        stage, done = at.stage, at.stage_step + 1
        if done == stage.steps or stage.until is None:
            return
        self._run.schedule.end_early(at)
        last, metric = self._run.last_step, stage.until.metric
        self._record.tell(StageEnd(stage=stage.name, steps=done, planned=stage.steps, metric=metric, last_step=last))


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
