"""What the steps of a run have shown: means of metrics, skipped updates, broken files, plateaus that end a stage."""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hvdgan.data import BadFile, Samples, refuse_if_too_many
from hvdgan.data.domains import bad_files_of
from hvdgan.distributed.affinity import reading_threads
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError
from hvdgan.networks import cpu_or_gpu
from hvdgan.recipe.stage_plan import Position, is_due
from hvdgan.recipe.stages import Plateau
from hvdgan.runs.events import Event, SkippedFile, SkippedUpdate, StageEnd
from hvdgan.runs.metrics import mode_of
from hvdgan.training.build import Run
from hvdgan.training.memory import forget_peak
from hvdgan.training.record import Record
from hvdgan.training.saving import ResumePoint
from hvdgan.training.speeds import Speeds, input_speed
from hvdgan.training.step import Data, StageStep, used

_STEPS = 100
"""number of steps after which a log says whether the input keeps up, but not the first log: the queue fills first"""
_MOST = 256
"""values per device read; each distinct count builds another kernel of tf.stack"""


class Observations:
    """Everything that the steps of a run have shown so far; a resumed run continues with it."""

    def __init__(self, run: Run, resume_point: ResumePoint, record: Record) -> None:
        config, ranks, progress = run.config, run.ranks, resume_point.progress
        self._run, self._record = run, record
        self._weights = ranks.weights(config.global_batch_size)
        self._saved = progress_of_rank(ranks, progress.get("ranks", []))
        self._bad_files = BadFiles(run.source, config.max_bad_fraction, record.tell, progress.get("bad_files", {}))
        self._bad_updates = BadUpdates(progress.get("bad_updates", {}))
        self._window = Window(self._saved.get("window"))
        self._watch = PlateauWatch(None)
        self._speeds = Speeds(ranks, self._weights, record.tell)
        self._input_from: float = resume_point.step + max(_STEPS, 2 * config.log_every)
        """step whose log says whether the input keeps up"""
        for line in run.source.remarks:
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
        stage = at.stage.name
        for update, times in self._bad_updates.add(stage, metrics, skipped):
            if times >= self._run.config.max_bad_steps:
                mine = not_finite(self._run.steps[at.index], update, step, data)
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
        self._bad_files.add(everyones_bad_files)
        speed = config.global_batch_size / values["step_seconds"]
        more = {"images_per_sec": speed, "bad_files": len(self._bad_files.known), **self._speeds.add(done, everyones)}
        optimizers, owned = self._run.state.optimizers.items(), {*at.stage.owns}
        rates = {f"{name}/learning_rate": each for name, each in optimizers if name.partition("/")[0] in owned}
        more |= {name: float(each.learning_rate) for name, each in rates.items()}
        self._record.write(done, at.stage.name, at.stage_step + 1, {**more, **values})
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
        window, watch = self._window.state(), self._watch.state()
        mine = {"window": window, "watch": watch, "weight": self._weights[run.ranks.rank]}
        # Copies, because a thread writes them during the next steps.
        return {
            **run.plan.progress(),
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
        self._run.plan.end_early(at)
        last, metric = self._run.last_step, stage.until.metric
        self._record.tell(StageEnd(stage=stage.name, steps=done, planned=stage.steps, metric=metric, last_step=last))


class BadFiles:
    """The broken files that all ranks have met."""

    def __init__(self, source: Samples, most: float, tell: Callable[[Event], None], saved: Mapping[str, str]) -> None:
        self._source, self._most, self._tell = source, most, tell
        self._found: Sequence[BadFile] = bad_files_of(source)
        self.known = dict(saved)
        """reasons by file name, the same on every rank, as JSON types"""

    def new(self, met: Iterable[BadFile]) -> list[BadFile]:
        """Those of the broken files that are not known yet; add() takes what all ranks have found."""
        return [bad for bad in met if bad.name not in self.known]

    def add(self, everyones: Iterable[Iterable[Sequence[str]]]) -> None:
        """Add the new broken files of all ranks; every rank calls this."""
        for name, reason in itertools.chain(self._found, *everyones):
            if name not in self.known:
                self._tell(SkippedFile(name=name, reason=reason))
                self.known[name] = reason
        self._found = ()
        refuse_if_too_many(
            RunError,
            name=self._source.name,
            bad_files=list(self.known.items()),
            total=sum(each.total for each in self._source.domains.values()),
            max_bad_fraction=self._most,
        )


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


class Window:
    """Sums of metrics over steps; the values stay on their device until a mean or the state is read."""

    def __init__(self, state: dict[str, list[float]] | None = None) -> None:
        self._waiting: list[dict[str, tf.Tensor | float]] = []
        self._sums = {name: (total, round(count)) for name, (total, count) in (state or {}).items()}

    def add(self, values: dict[str, tf.Tensor | float]) -> None:
        """Add one step's values by name; a step may lack some of the names."""
        self._waiting.append(values)

    def means(self) -> dict[str, float]:
        """Return the mean of each name over the steps that had it."""
        return {name: total / count for name, (total, count) in sorted(self._read().items())}

    def state(self) -> dict[str, list[float]]:
        """Return the sum and the count of each name, as JSON types."""
        return {name: [total, count] for name, (total, count) in self._read().items()}

    def _read(self) -> dict[str, tuple[float, int]]:
        # The values are added one by one and in order, so that a checkpoint in between does not change the sums' bits.
        named = [each for values in self._waiting for each in values.items()]
        for (name, _), value in zip(named, _numbers([value for _, value in named]), strict=True):
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + value, count + 1
        self._waiting = []
        return self._sums


def _numbers(values: Sequence[tf.Tensor | float]) -> list[float]:
    """The numbers of values. The host waits for a GPU once for many of them, and not for each."""
    if not cpu_or_gpu.chosen().own_memory:  # there is nothing to wait for
        return [float(value) for value in values]
    tensors = [value for value in values if tf.is_tensor(value)]
    read: list[float] = []
    for begin in range(0, len(tensors), _MOST):
        read += tf.stack(tensors[begin : begin + _MOST]).numpy().tolist()
    known = dict(zip(map(id, tensors), read, strict=True))
    return [known[id(value)] if id(value) in known else float(value) for value in values]


def merge_states(states: Sequence[dict[str, list[float]]], weights: Sequence[float]) -> dict[str, list[float]]:
    """Merge the windows of all ranks, which have counted the same steps, into one that any rank can resume from."""
    return {
        name: [sum(w * each[name][0] for w, each in zip(weights, states, strict=True)) / sum(weights), count]
        for name, (_, count) in states[0].items()
    }


class PlateauWatch:
    """Follows the metric of one stage; it decides from means over all ranks, so that all decide the same."""

    def __init__(self, rule: Plateau | None, state: dict[str, Any] | None = None) -> None:
        state = state or {"best": None, "waited": 0, "window": None}
        self._rule = rule
        self._best: float | None = state["best"]
        self._waited: int = state["waited"]
        self._window = Window(state["window"])

    def state(self) -> dict[str, Any] | None:
        """Return what a resumed run needs, as JSON types; None if there is no rule."""
        if self._rule is None:
            return None
        return {"best": self._best, "waited": self._waited, "window": self._window.state()}

    def add(self, metrics: dict[str, Any]) -> None:
        """Add one step's metrics by name."""
        if self._rule and self._rule.metric in metrics:
            self._window.add({self._rule.metric: metrics[self._rule.metric]})

    def is_over(self, stage_step: int, ranks: Ranks, weights: Sequence[float]) -> bool:
        """Check whether the stage ends here; every rank calls this after each step."""
        if self._rule is None or stage_step % self._rule.window:
            return False
        everyones = ranks.gather(self._window.means(), "plateau")
        means = [w * each[self._rule.metric] for w, each in zip(weights, everyones, strict=True) if each]
        self._window = Window()
        if not means:
            return False
        value = math.fsum(means) / len(means)
        better = value if (self._rule.mode or mode_of(self._rule.metric)) == "min" else -value
        # NaN must not become the best: no value would ever be better.
        if not math.isnan(value) and (self._best is None or better < self._best - self._rule.min_delta):
            self._best, self._waited = better, 0
        else:
            self._waited += 1
        return self._waited >= self._rule.patience


def progress_of_rank(ranks: Ranks, everyones: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what this rank has saved; if the number of ranks has changed, the mean over all."""
    if not everyones:
        return {}
    if len(everyones) == ranks.size:
        return everyones[ranks.rank]
    weights = [each["weight"] for each in everyones]
    watch = everyones[0]["watch"]
    if watch:
        watch = {**watch, "window": merge_states([each["watch"]["window"] for each in everyones], weights)}
    return {"window": merge_states([each["window"] for each in everyones], weights), "watch": watch}
