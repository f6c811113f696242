"""Describes a run in words: for --dry-run, at its start and at its end."""

import json
import os
import platform
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from hvdgan import __version__
from hvdgan.cli.launcher import allocated
from hvdgan.data import Source
from hvdgan.distributed import backend, devices
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe.stages import Update
from hvdgan.training.building.run import Run
from hvdgan.training.resuming.changes import how_to_continue
from hvdgan.training.resuming.resume_point import ResumePoint
from hvdgan.training.steps.averages import RAMP_UP


def announce(run: Run, resume_point: ResumePoint, say: Callable[[str], None]) -> None:
    """Log what is about to be trained; every rank calls this.

    Args:
        run: run, built and restored.
        resume_point: place from which it resumes.
        say: function that logs a line.
    """
    if resume_point.recovered:
        say(f"{run.ranks.size} rank(s) resume at step {resume_point.step} of {run.last_step}, from the last commit")
        return
    for line in lines(run.ranks):
        say(line)
    say(describe(run))
    say(f"run folder {run.run_dir}")
    # Checkpoints from before --eval-images do not say how many images were evaluated: it was all held-out ones.
    before = (
        resume_point.progress.get("evaluated", len(run.held_out)) if run.held_out and resume_point.progress else None
    )
    changed = run.evaluator.remark(before) if run.evaluator else None
    for remark in [*resume_point.remarks, *([changed] if changed else [])]:
        say(remark)
    if resume_point.step >= run.last_step:
        say(f"nothing to do: step {resume_point.step} of {run.last_step} is reached; {how_to_continue(run)}")
    elif resume_point.step:
        say(f"resuming at step {resume_point.step} of {run.last_step}")


def end_of(run: Run, first: int, done: int, reason: str | None) -> str:
    """Describe how the steps have ended.

    Args:
        run: run that has ended or stopped.
        first: number of steps done before this launch.
        done: number of steps done now.
        reason: reason to stop before the last step; None: the last step is reached.
    """
    if reason is None:
        return f"done: {done} steps; samples in {run.run_dir / 'samples'}"
    if done == first:
        when = f"stopped before the first step, at step {done} of {run.last_step} ({reason})"
    else:
        when = f"stopped after step {done} of {run.last_step} ({reason}) and saved"
    return f"{when}; the same command resumes the run"


def describe(run: Run) -> str:
    """Describe the settings, the networks with their parameters, and the stages with what each update reduces."""
    lines = ["config:", json.dumps(run.settings(), indent=2), "networks:"]
    for name, network in run.state.networks.items():
        frozen = network.count_params() - _trainable(network)
        lines.append(f"  {name}: {_trainable(network):,} trainable parameters, {frozen:,} other")
    lines.append(f"stages ({run.schedule.total_steps:,} steps; this run ends at step {run.last_step:,}):")
    for stage in run.schedule.stages:
        lines.append(f"  {stage.name}: {stage.steps:,} steps")
        for update in stage.updates:
            often = "every step" if update.every == 1 else f"every {update.every} steps"
            lines.append(f"    {update.name}: owns {', '.join(update.owns)}; {often}; {_reduced(run, update)}")
    batch_size = run.config.global_batch_size
    if (half_life := run.config.ema_half_life) is not None:
        lines.append(
            f"average of {', '.join(run.state.ema)}: half-life {half_life:,.0f} images, {half_life / batch_size:,.4g} "
            f"steps; less in the first {half_life / RAMP_UP:,.0f} images"
        )
    counts = sorted({round(weight * batch_size / run.ranks.size) for weight in run.ranks.weights(batch_size)})
    lines.append(f"ranks: {run.ranks.size}, {' or '.join(map(str, counts))} images each per step")
    source = run.source
    held = "" if run.held_out is None else f", and {len(run.held_out):,} held out"
    if run.held_out and run.evaluated and len(run.evaluated) < len(run.held_out):
        held += f", of which evaluations look at {len(run.evaluated):,} (--eval-images)"
    lines.append(f"data: {source.name}, {len(source):,} {_samples_of(source)}{held}")
    if run.comparison:
        lines.append(f"evaluations: {run.comparison}")
    if not source.is_pictures or source.conditions is not None:
        lines += [f"  {line}" for line in source.values.lines()]
    return "\n".join(lines)


def _samples_of(source: Source) -> str:
    """Describe the shape and type of the samples."""
    layout = source.layout
    what = "pairs of " if source.paired else ""
    kind = "pictures" if source.is_pictures else f"{source.stored_dtype} arrays"
    text = f"{what}{kind} of shape {layout.shape}"
    if layout.input_shape not in (None, layout.shape):
        text += f" with inputs of shape {layout.input_shape}"
    return text if layout.crop is None else f"{text}, of which networks see {layout.seen} (--crop)"


def lines(ranks: Ranks) -> list[str]:
    """Describe the ranks: hosts, devices, launcher, collectives and versions; every rank calls this."""
    places = devices.everyones_devices(ranks)
    hosts = len({place.host for place in places})
    found = [
        f"hvdgan {__version__}: {ranks.size} rank(s) on {hosts} host(s), launcher {ranks.launcher}, "
        f"{_collectives(ranks, on_gpu=places[0].gpu is not None)}; {_versions(ranks)}",
        *devices.by_host(places),
    ]
    tasks = allocated()
    if ranks.launcher == "none" and tasks is not None and tasks > 1:
        found.append(
            f"one process in a Slurm allocation of {tasks} tasks; srun, or launch/multi_node.sh, starts them all"
        )
    return found


def _reduced(run: Run, update: Update) -> str:
    """Describe how many bytes one all-reduce of an update moves: 4 for each parameter, or 2 in float16."""
    bytes_each = 2 if run.config.compression == "fp16" else 4
    size = bytes_each * sum(_trainable(run.state.networks[name]) for name in update.owns)
    return f"all-reduces {size:,} bytes" if run.ranks.size > 1 else "no all-reduce with one rank"


def _trainable(network: keras.Model) -> int:
    return sum(int(np.prod(variable.shape)) for variable in network.trainable_variables)


def _collectives(ranks: Ranks, *, on_gpu: bool) -> str:
    if ranks.size == 1:
        return "no collectives"
    names = {"mpi": "MPI", "gloo": "Gloo", "ccl": "oneCCL"}
    over = backend.controller()
    if on_gpu and backend.build()["nccl"]:
        collectives = "NCCL"
    else:
        asked = os.environ.get("HOROVOD_CPU_OPERATIONS", over).lower()
        collectives = names.get(asked, asked)
    return f"controller {names[over]}, collectives {collectives}"


def _versions(ranks: Ranks) -> str:
    horovod = "" if ranks.size == 1 else f", Horovod {backend.build()['version']}"
    return f"Python {platform.python_version()}, TensorFlow {tf.__version__}, Keras {keras.__version__}{horovod}"
