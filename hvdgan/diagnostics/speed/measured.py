"""Measures the training loop of a run: seconds of a step, and its parts.

To measure the part of the all-reduce that computing does not hide, blocks of steps alternate with blocks of the same
step without all-reduce, which all ranks run at the same time; the ranks wait for each other before each block. The
first steps of a block find more batches ready than the later ones, and do not count.
"""

import contextlib
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import tensorflow as tf

from hvdgan.cli import hosts
from hvdgan.cli.errors import RunError
from hvdgan.cli.evaluation_config import EvaluationConfig
from hvdgan.diagnostics.speed.blocks import Clock, parts, plan
from hvdgan.diagnostics.speed.clocked import ClockedBatches, ClockedStep, Session, WithoutCommunication, largest
from hvdgan.diagnostics.speed.meeting import Meeting
from hvdgan.diagnostics.speed.spec import TIMELINE, Spec
from hvdgan.distributed import backend
from hvdgan.distributed.liveness.heartbeat import Heartbeat
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe.results import stages_of
from hvdgan.recipe.schedule import Position, Schedule, checked_stages
from hvdgan.recipe.stages import Update
from hvdgan.training import session as training
from hvdgan.training.command import Resume, parse
from hvdgan.training.loop import steps_from
from hvdgan.training.page import Page
from hvdgan.training.repeatable import operations
from hvdgan.training.restore import restore
from hvdgan.training.resume_point import Commits
from hvdgan.training.run import Run, build
from hvdgan.training.step import Compute
from hvdgan.training.stopping import Stopping

_MORE = 10**9
"""additional steps of the last stage, for copies that wait for others"""
_TIMELINE_STEPS = 10


def measure(spec: Spec, ranks: Ranks, run_dir: Path, meeting: Meeting | None) -> dict[str, Any]:
    """Train a run and measure it; every rank calls this."""
    run = _build(spec, ranks, run_dir)
    session = Session(ranks, meeting, spec.began)
    apart = WithoutCommunication(run)
    clocked = []
    for step in run.steps:
        cycle = math.lcm(*(update.every for update in step.stage.updates))
        blocks = plan(spec.steps, cycle, run.config.pipeline.prefetch + 1, several=ranks.size > 1)
        clocked.append(ClockedStep(step, apart, Clock(blocks), session))
    run = dataclasses.replace(run, schedule=_measured_schedule(run, clocked))
    commits = Commits()
    resume_point = restore(run, Resume(resume="never"), commits)
    read = functools.partial(ClockedBatches, session)
    with Stopping(ranks, run.run_dir / "stop", None) as stopping:
        how: dict[str, Any] = {"read": read, "steps": _steps(run, clocked, meeting)}
        training.train(run, resume_point, Heartbeat(), stopping, commits, Page("never"), **how)
    peak = largest(step.peak for step in clocked)
    stages = {step.stage.name: _stage(step, ranks, spec.steps) for step in clocked}
    if spec.timeline:
        _record_timeline(str(Path(spec.folder) / TIMELINE), clocked)
    return {
        "ranks": ranks.size,
        "controller": backend.controller() if ranks.size > 1 else None,
        "global_batch_size": run.config.global_batch_size,
        "startup_seconds": max(ranks.gather(session.startup, "bench: first step")),
        **largest(ranks.gather(peak, "bench: memory")),
        "processes": ranks.gather({"host": os.uname().nodename, "cores": hosts.cores()}, "bench: processes"),
        "stages": stages,
    }


def _build(spec: Spec, ranks: Ranks, run_dir: Path) -> Run:
    command = parse([*spec.arguments, "--global-batch-size", str(spec.global_batch_size)])
    if command is None:
        raise RunError("--help starts no run that could be measured; leave it out")
    config = command.config
    threads = config.pipeline.threads or len(hosts.cores())
    never = dict.fromkeys(("sample_every", "checkpoint_every", "check_ranks_every"), 0)
    config = dataclasses.replace(
        config,
        # The ranks compare settings, and the copies must not share a folder.
        run_dir=run_dir if ranks.size == 1 else run_dir.parent / "run",
        max_steps=None,
        evaluation=EvaluationConfig(eval_every=0),
        best_metric=None,
        max_bad_steps=_MORE,
        pipeline=dataclasses.replace(config.pipeline, threads=threads),
        **cast(Any, never),
    )
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    return build(config, command.recipe, command.options, ranks)


def _measured_schedule(run: Run, clocked: Sequence[ClockedStep]) -> Schedule:
    """Return a schedule in which each stage has the steps of its blocks, regardless of its plateau."""
    counts = [step.clock.steps for step in clocked]
    counts[-1] += _MORE
    choice = ",".join(f"{step.stage.name}={count}" for step, count in zip(clocked, counts, strict=True))
    stages = [dataclasses.replace(stage, until=None) for stage in stages_of(run.recipe)]
    return Schedule(checked_stages(stages, list(run.state.networks), choice))


def _steps(
    run: Run, clocked: Sequence[ClockedStep], meeting: Meeting | None
) -> Iterator[tuple[int, Position, Compute]]:
    """Yield the steps of all blocks; a copy continues until the others, which count on its load, are done."""
    for step, at, _ in steps_from(run, 0):
        if at.stage_step >= clocked[at.index].clock.steps and (meeting is None or meeting.all_done()):
            return
        yield step, at, clocked[at.index]


def _stage(step: ClockedStep, ranks: Ranks, steps: int) -> dict[str, Any]:
    """Compute the figures of a stage, as means over the ranks; every rank calls this."""
    updates = step.stage.updates
    figures: dict[str, Any] = parts(*_over_ranks(step.clock.times, ranks))
    one_by_one = {update.name: _update(step, update, ranks, steps) for update in updates}
    if len(updates) == 1 and updates[0].every == 1:  # the update is the whole step, which is measured already
        same = ("compute_seconds", "exposed_allreduce_seconds")
        one_by_one[updates[0].name] |= {name: figures[name] for name in same}
    reduced, owned = (
        sum(each[kind] / each["every"] for each in one_by_one.values()) for kind in ("bytes_reduced", "bytes_owned")
    )
    return {**figures, "bytes_reduced": reduced, "bytes_owned": owned, "updates": one_by_one}


def _update(step: ClockedStep, update: Update, ranks: Ranks, steps: int) -> dict[str, Any]:
    """Measure an update without the others of its stage, which share work with it, and count its bytes."""
    with tf.device("cpu:0"):  # as StageStep does
        arguments = tf.constant(0, tf.int64), tf.constant(0, tf.int64), step.data
    kinds = {True: step.inner, False: step.unreduced} if ranks.size > 1 else {True: step.inner}
    times: dict[bool, list[list[float]]] = {True: [], False: []}
    only = len(step.stage.updates) == 1
    for block in plan(1 if only else steps, 1, 1, several=ranks.size > 1):
        ranks.gather(None, "bench: update")
        with contextlib.nullcontext() if block.reduces else step.apart:
            function = kinds[block.reduces].function((update,))
            _repeat(function, arguments, block.lead)
            begin = time.perf_counter()
            _repeat(function, arguments, block.measured)
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


def _repeat(function: Callable[..., Any], arguments: Sequence[Any], times: int) -> None:
    """Call an update's function several times, and wait for the end of the last call."""
    finite = tf.zeros(0, tf.bool)  # of no call
    for _ in range(times):
        _, finite = function(*arguments)
    finite.numpy()


def horovod_operations(graph: Any) -> list[Any]:
    """List the Horovod operations of a graph and of the functions that it calls."""
    return [chain[-1] for chain, _ in operations(graph) if chain[-1].type.startswith("Horovod")]


def _over_ranks(times: dict[bool, list[list[float]]], ranks: Ranks) -> tuple[Any, Any]:
    """Average the times of each block over the ranks; returns those with and without all-reduce."""
    everyones = ranks.gather([times[True], times[False]], "bench: times")
    with_reduction, without = (np.mean([each[kind] for each in everyones], axis=0).tolist() for kind in (0, 1))
    return with_reduction, without


def _record_timeline(path: str, steps: Sequence[ClockedStep]) -> None:
    """Record some more steps of each stage, on its last batch: recording would slow down the measured steps."""
    with backend.timeline(path):
        for step in steps:
            for number in range(min(_TIMELINE_STEPS, step.stage.steps)):
                _, finite = step.inner(number, number, step.data)
                finite.numpy()
