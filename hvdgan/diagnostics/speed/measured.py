"""Measures the real training loop.

hvdgan.training.session trains as usual, with batches and steps that take the time. The time between two steps, less the
wait for data, is the host's: the loop, its checks for signals, and logging at its usual period.

To see what of the all-reduce computing does not hide, blocks of steps alternate with blocks of the same step without
reduction, run by all ranks at the same time; all wait for each other before a block. The first steps of a block, which
find more batches ready than the later ones, are not counted.
"""

import contextlib
import dataclasses
import functools
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import tensorflow as tf

from hvdgan.cli import hosts
from hvdgan.cli.config import Resume
from hvdgan.cli.errors import RunError
from hvdgan.data.pipeline import Batches
from hvdgan.diagnostics import allreduce
from hvdgan.diagnostics.speed.blocks import Block, Clock, parts, plan
from hvdgan.diagnostics.speed.meeting import Meeting
from hvdgan.diagnostics.speed.spec import TIMELINE, Spec
from hvdgan.distributed import backend
from hvdgan.distributed.batch_norm import SynchronisedBatchNormalization
from hvdgan.distributed.liveness.heartbeat import Heartbeat
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks.kernels import layers_of
from hvdgan.recipe.checks.returned import stages_of
from hvdgan.recipe.schedule import Position, Schedule
from hvdgan.recipe.stages import Update
from hvdgan.training import session as training
from hvdgan.training.command import parse
from hvdgan.training.commits import Commits
from hvdgan.training.loop import steps_from
from hvdgan.training.monitoring.stopping import Stopping
from hvdgan.training.resuming.restore import restore
from hvdgan.training.run import Run, build
from hvdgan.training.steps.graphs import operations
from hvdgan.training.steps.step import StageStep

_MORE = 10**9
"""steps that the last stage has beyond those that are measured, for copies that wait for others"""
_ALLREDUCE_SECONDS = 0.2
_TIMELINE_STEPS = 10


class Unreduced(Ranks):
    """Ranks that take their slices and compute as they do, and do not tell each other their gradients."""

    def reduced_gradients(self, *arguments: Any, **more: Any) -> list[tf.Tensor]:
        """This rank's own."""
        return Ranks().reduced_gradients(*arguments, **more)

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """This rank's own."""
        return values


class _Apart:
    """A context in which this rank's networks, those with --sync-batch-norm too, do not speak to other ranks."""

    def __init__(self, run: Run) -> None:
        fields = dataclasses.fields(run.ranks)
        self.ranks = Unreduced(**{field.name: getattr(run.ranks, field.name) for field in fields})
        self._together = run.ranks
        self._layers = [
            layer
            for network in run.state.networks.values()
            for layer in layers_of(network)
            if isinstance(layer, SynchronisedBatchNormalization)
        ]

    def __enter__(self) -> None:
        self._set(self.ranks)

    def __exit__(self, *exception: object) -> None:
        self._set(self._together)

    def _set(self, ranks: Ranks) -> None:
        # Tracing looks at it, and what is traced stays as it is.
        for layer in self._layers:
            layer.set_ranks(ranks, layer.weight)


@dataclasses.dataclass
class _Session:
    """What the steps of all stages share."""

    ranks: Ranks
    meeting: Meeting | None
    began: float
    ended: float = 0.0
    """when the last call ended, by perf_counter"""
    waited: float = 0.0
    """seconds that the loop has waited for its newest batch"""
    startup: float | None = None
    """seconds from the launch to the end of the first step"""
    peak: dict[str, int | None] = dataclasses.field(default_factory=dict)
    """memory, before a stage's first step without reduction"""
    met: bool = False

    def together(self, block: Block) -> None:
        """Wait until all are about to begin a block."""
        if self.ranks.size > 1:
            self.ranks.gather(None, "bench: block")
        elif self.meeting and block.measured and not self.met:
            self.met = True
            self.meeting.wait()


class _ClockedStep:
    """Takes the place of a stage's step in the loop, and measures it."""

    def __init__(self, inner: StageStep, apart: "_Apart", clock: Clock, session: _Session) -> None:
        self.inner = inner
        self.apart = apart
        self.unreduced = StageStep(inner.recipe, inner.state, inner.stage, apart.ranks, inner.config)
        self.clock = clock
        self.session = session
        self.data: dict[str, tf.Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, step: int, stage_step: int, data: dict[str, tf.Tensor]) -> Any:
        session = self.session
        if stage_step >= self.clock.steps:  # a copy that waits for the others
            return self.inner(step, stage_step, data)
        block, begins = self.clock.enter(stage_step)
        if begins:
            if not (block.reduces or self.clock.times[True]):
                session.peak = _peak_memory()
            session.together(block)
        with contextlib.nullcontext() if block.reduces else self.apart:
            begin = time.perf_counter()
            metrics, finite = (self.inner if block.reduces else self.unreduced)(step, stage_step, data)
            _finish(finite)
            end = time.perf_counter()
        self.clock.add(end - session.ended, session.waited, end - begin)
        session.ended = end
        if session.startup is None:
            session.startup = time.time() - session.began
        self.data = {name: data[name] for name in ("images", "labels") if name in data}
        return metrics, finite


def measure(spec: Spec, ranks: Ranks, run_dir: Path, meeting: Meeting | None) -> dict[str, Any]:
    """Train and measure; every rank calls this.

    Args:
        spec: settings of the launch.
        ranks: ranks of the launch; one rank for a copy.
        run_dir: folder for the files of the run.
        meeting: meeting with the other copies; None if there are none.

    Returns:
        The figures of all ranks, on each rank.

    Raises:
        UserError, RunError: as hvdgan.train.
    """
    run = _build(spec, ranks, run_dir)
    session = _Session(ranks, meeting, spec.began)
    apart = _Apart(run)
    clocked = []
    for step in run.steps:
        cycle = math.lcm(*(update.every for update in step.stage.updates))
        blocks = plan(spec.steps, cycle, run.config.pipeline.prefetch + 1, several=ranks.size > 1)
        clocked.append(_ClockedStep(step, apart, Clock(blocks), session))
    run = dataclasses.replace(
        run, schedule=_measured_schedule(run, clocked), steps=cast(tuple[StageStep, ...], tuple(clocked))
    )
    commits = Commits()
    found = restore(run, Resume(resume="never"), commits)
    read = functools.partial(_ClockedBatches, session)
    with Stopping(ranks, run.run_dir / "stop", None) as stopping:
        training.train(run, found, Heartbeat(), stopping, commits, read=read, steps=_steps(run, clocked, meeting))
    peak = session.peak or _peak_memory()
    stages = {step.stage.name: _stage(step, ranks, spec.steps) for step in clocked}
    if spec.timeline:
        _record_timeline(str(Path(spec.folder) / TIMELINE), clocked)
    sizes = [update["bytes_owned"] for stage in stages.values() for update in stage["updates"].values()]
    return {
        "ranks": ranks.size,
        "controller": backend.controller() if ranks.size > 1 else None,
        "global_batch_size": run.config.global_batch_size,
        "startup_seconds": max(ranks.gather(session.startup, "bench: first step")),
        **_largest(ranks.gather(peak, "bench: memory")),
        "processes": ranks.gather({"host": os.uname().nodename, "cores": hosts.cores()}, "bench: processes"),
        "stages": stages,
        "allreduce": _allreduce(ranks, sizes) if spec.allreduce and ranks.size > 1 else [],
    }


def _build(spec: Spec, ranks: Ranks, run_dir: Path) -> Run:
    command = parse([*spec.arguments, "--global-batch-size", str(spec.global_batch_size)])
    if command is None:
        raise RunError("there is nothing to measure in a request for help")
    config = command.config
    threads = config.pipeline.threads or len(hosts.cores())
    never = dict.fromkeys(("sample_every", "eval_every", "checkpoint_every", "check_ranks_every"), 0)
    config = dataclasses.replace(
        config,
        # The ranks compare settings, and the copies must not share a folder.
        run_dir=run_dir if ranks.size == 1 else run_dir.parent / "run",
        max_steps=None,
        best_metric=None,
        max_bad_steps=_MORE,
        pipeline=dataclasses.replace(config.pipeline, threads=threads),
        **cast(Any, never),
    )
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    return build(config, command.recipe, command.options, ranks)


class _ClockedBatches(Batches):
    """Batches that note how long the loop waits for each."""

    def __init__(self, session: _Session, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._session = session

    def __next__(self) -> dict[str, tf.Tensor]:
        begin = time.perf_counter()
        batch = super().__next__()
        self._session.waited = time.perf_counter() - begin
        return batch


def _measured_schedule(run: Run, clocked: Sequence[_ClockedStep]) -> Schedule:
    """Return a schedule in which each stage has the steps of its blocks, whatever its plateau would say."""
    counts = [step.clock.steps for step in clocked]
    counts[-1] += _MORE
    choice = ",".join(f"{step.stage.name}={count}" for step, count in zip(clocked, counts, strict=True))
    stages = [dataclasses.replace(stage, until=None) for stage in stages_of(run.recipe)]
    return Schedule(stages, list(run.state.networks), choice)


def _steps(run: Run, clocked: Sequence[_ClockedStep], meeting: Meeting | None) -> Iterator[tuple[int, Position]]:
    """Yield the steps of all blocks; a copy continues until the others, which count on its load, are done."""
    for step, at in steps_from(run, 0):
        if at.stage_step >= clocked[at.index].clock.steps and (meeting is None or meeting.all_done()):
            return
        yield step, at


def _finish(finite: dict[str, tf.Tensor]) -> None:
    """Wait for a step to end."""
    for verdict in finite.values():
        verdict.numpy()


def _stage(step: _ClockedStep, ranks: Ranks, steps: int) -> dict[str, Any]:
    """A stage's figures, means over the ranks; every rank calls it."""
    updates = step.stage.updates
    figures: dict[str, Any] = parts(*_over_ranks(step.clock.times, ranks))
    one_by_one = {update.name: _update(step, update, ranks, steps) for update in updates}
    if len(updates) == 1 and updates[0].every == 1:  # it has been measured: it is the step
        same = ("compute_seconds", "exposed_allreduce_seconds")
        one_by_one[updates[0].name] |= {name: figures[name] for name in same}
    reduced, owned = (
        sum(each[kind] / each["every"] for each in one_by_one.values()) for kind in ("bytes_reduced", "bytes_owned")
    )
    return {**figures, "bytes_reduced": reduced, "bytes_owned": owned, "updates": one_by_one}


def _update(step: _ClockedStep, update: Update, ranks: Ranks, steps: int) -> dict[str, Any]:
    """An update's bytes, and its seconds where it runs without the others of its stage, which share work with it."""
    arguments = tf.constant(0, tf.int64), tf.constant(0, tf.int64), step.data
    kinds = {True: step.inner, False: step.unreduced} if ranks.size > 1 else {True: step.inner}
    times: dict[bool, list[list[float]]] = {True: [], False: []}
    only = len(step.stage.updates) == 1
    for block in plan(1 if only else steps, 1, 1, several=ranks.size > 1):
        ranks.gather(None, "bench: update")
        with contextlib.nullcontext() if block.reduces else step.apart:
            function = kinds[block.reduces].function((update,))
            for _ in range(block.lead):
                _finish(function(*arguments)[1])
            begin = time.perf_counter()
            for _ in range(block.measured):
                _finish(function(*arguments)[1])
            seconds = (time.perf_counter() - begin) / max(block.measured, 1)
        if block.measured:
            times[block.reduces].append([seconds, 0.0, seconds])
    figures = parts(*_over_ranks(times, ranks))
    reductions = horovod_operations(step.inner.function((update,)).get_concrete_function(*arguments).graph)
    return {
        "every": update.every,
        "compute_seconds": figures["compute_seconds"],
        "exposed_allreduce_seconds": figures["exposed_allreduce_seconds"],
        "bytes_reduced": sum(math.prod(value.shape) * value.dtype.size for each in reductions for value in each.inputs),
        "bytes_owned": 4 * sum(math.prod(variable.shape) for variable in step.inner.forward.variables(update)),
    }


def horovod_operations(graph: Any) -> list[Any]:
    """The Horovod operations of a graph and of the functions it calls."""
    return [chain[-1] for chain, _ in operations(graph) if chain[-1].type.startswith("Horovod")]


def _over_ranks(times: dict[bool, list[list[float]]], ranks: Ranks) -> tuple[Any, Any]:
    """The times of each kind's blocks, means over the ranks."""
    everyones = ranks.gather([times[True], times[False]], "bench: times")
    with_reduction, without = (np.mean([each[kind] for each in everyones], axis=0).tolist() for kind in (0, 1))
    return with_reduction, without


def _record_timeline(path: str, steps: Sequence[_ClockedStep]) -> None:
    """Steps of each stage on the batch that was the last, apart from those that are measured: it slows them."""
    with backend.timeline(path):
        for step in steps:
            for number in range(min(_TIMELINE_STEPS, step.stage.steps)):
                _finish(step.inner(number, number, step.data)[1])


def _allreduce(ranks: Ranks, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """What all-reduces cost, up to the largest that the training makes."""
    wanted = sorted({*allreduce.sizes_up_to(max(max(sizes), 2**20)), *sizes})
    return [allreduce.measure(ranks, size, _ALLREDUCE_SECONDS) for size in wanted]


def _peak_memory() -> dict[str, int | None]:
    """The most that this process has had: of the host's memory, and of its GPU's."""
    # ru_maxrss begins with what the launcher had before this program was in its place.
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    host = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    gpus = tf.config.list_logical_devices("GPU")
    return {
        "peak_rss_bytes": host,
        "peak_gpu_bytes": tf.config.experimental.get_memory_info("GPU:0")["peak"] if gpus else None,
    }


def _largest(everyones: Sequence[dict[str, int | None]]) -> dict[str, int | None]:
    return {name: max((each[name] for each in everyones), key=lambda value: value or 0) for name in everyones[0]}
