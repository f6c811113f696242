"""Describes a run in words: for --dry-run, also as if on many ranks (--as-if-ranks), at its start and at its end."""

import contextlib
import dataclasses
import inspect
import math
import os
import platform
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan import __version__
from hvdgan.data import Samples
from hvdgan.data.bad_files import printable
from hvdgan.data.batches import specs_of
from hvdgan.data.samples import arrays_seen
from hvdgan.distributed import backend, devices
from hvdgan.distributed.devices import Device
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import UserError, list_some
from hvdgan.evaluation.sets import in_short
from hvdgan.launching.launched import allocated, requeued
from hvdgan.launching.programs import git_state
from hvdgan.recipe import Recipe, recipe_errors
from hvdgan.runs.events import End, NetworkFacts, Recovery, StageFacts, Start, UpdateFacts
from hvdgan.settings.config import Config, to_json
from hvdgan.settings.file import as_words
from hvdgan.training.averages import RAMP_UP
from hvdgan.training.batch_sizes import check_batch
from hvdgan.training.build import Run, make_trainable
from hvdgan.training.changes import named_steps, stage_steps
from hvdgan.training.page import FILE
from hvdgan.training.record import Record
from hvdgan.training.saving import ResumePoint
from hvdgan.training.step import StageStep

_GBITS = (10, 100)  # of Ethernet, and of a host with a fast interconnect
_HOP_SECONDS = 20e-6  # of a small TCP message over 10-Gbit/s Ethernet (Hurwitz and Feng, Hot Interconnects 2003)


def announce(run: Run, resume_point: ResumePoint, record: Record) -> None:
    """Log what is about to be trained; every rank calls this."""
    if resume_point.recovered:
        record.tell(Recovery(ranks=run.ranks.size, step=resume_point.step, last_step=run.last_step))
        return
    start = start_of(run, devices.everyones_devices(run.ranks), resume_point.step)
    record.write_event(start)
    folder = f"run folder {run.run_dir}: {_position(run, start.step)}; its config.json has every setting"
    lines = _lines(run, start, folder)
    if run.ranks.launcher == "none" and (tasks := allocated() or 1) > 1:
        lines.append(f"one process in a Slurm allocation of {tasks} tasks; srun, or hvdgan launch, starts all")
    if run.config.report != "never":
        when = "after checkpoints and at the end" if run.config.report == "checkpoints" else "at the end"
        lines.append(f"page about the run, written {when}: {run.run_dir / FILE}")
    lines += resume_point.remarks
    if run.evaluator and (remark := run.evaluator.remark(resume_point.progress.get("evaluated"))):
        lines.append(remark)
    if run.comparison:
        lines += run.comparison.remarks()
    for line in lines:
        record.say(line)
    if resume_point.step >= run.last_step:
        text = f"nothing to do: step {resume_point.step} of {run.last_step} is reached; {_how_to_continue(run)}"
        record.tell(End(state="finished", text=text))


def describe(run: Run, of_ranks: Sequence[Device]) -> str:
    """Describe what a run says at its start, given the devices of the ranks."""
    folder = f"run folder {run.run_dir}: {_ends(run)}; --dry-run writes nothing; --print-config has every setting"
    *lines, settings, last = _lines(run, start_of(run, of_ranks, 0), folder)
    wrapped = [part for line in lines for part in _wrapped(line)]
    return "\n".join([*wrapped, settings, last, *run.source.remarks])  # the settings are there to be copied


def as_if(run: Run, size: int) -> Iterator[str]:
    """Describe the slices of this many ranks, what each holds, and the time of the all-reduce, in lines."""
    config = run.config
    first, past = check_batch(config, run.recipe, size).slice_of(config.global_batch_size)
    _check_slice(run, past - first, size)
    micro = f" in {config.accumulate} micro-batches" if config.accumulate > 1 else ""
    steps = len(run.source) / config.global_batch_size
    yield (
        f"as if on {size} ranks, not elastic: {past - first} samples of {config.global_batch_size} a rank and "
        f"step{micro}; an epoch has {steps:,.6g} steps, in which a rank reads {len(run.source) / size:,.6g} samples"
    )
    held = sum(math.prod(each.shape) * each.value.dtype.size for each in run.state.tensors().values())
    batch = sum(math.prod(each.shape) * each.dtype.size for each in specs_of(run.source, past - first).values())
    yield (
        f"each rank holds {held / 1e6:,.1f} MB of weights, slots and averages, {batch / 1e6:,.6g} MB of the "
        f"{size * batch / 1e6:,.6g} MB of each global batch, and what the step computes"
    )
    apart = ", besides those of --sync-batch-norm" * config.sync_batch_norm
    for step in run.steps:
        stage = _stage(run, step, size)
        sent = sum(update.bytes / update.every for update in stage.updates)
        times = (f"{2e3 * (size - 1) / size * sent / (gbits * 1.25e8):.3g} ms at {gbits} Gbit/s" for gbits in _GBITS)
        hops, calls = 2 * (size - 1), {name: traffic.reductions for name, traffic in step.traffic.items()}
        reductions = sum((1 + calls[update.name]) / update.every for update in stage.updates)
        yield (
            f"stage {stage.name}: all-reduces {sent / 1e6:,.2f} MB a step: {', '.join(times)}; and "
            f"{1e3 * reductions * hops * _HOP_SECONDS:.3g} ms for {reductions:.3g} reductions of {hops} hops around a "
            f"ring, {1e6 * _HOP_SECONDS:g} us each{apart}; if none is late"
        )


def _check_slice(run: Run, count: int, size: int) -> None:
    """Trace the steps of a rank whose slice of each global batch has `count` samples."""
    config = dataclasses.replace(run.config, global_batch_size=count)
    try:
        with recipe_errors.of(run.recipe):
            for step in make_trainable(config, type(run.recipe), run.recipe.options, run.recipe.data, Ranks()).steps:
                step.trace(run.source)
                if size > 1 and step.of_several:
                    raise step.of_several[0]
    except UserError as error:
        raise UserError(f"with {count} samples a rank: {error}") from error


def end_of(run: Run, first: int, done: int, reason: str | None) -> End:
    """Describe how the steps have ended."""
    if reason is None:
        text = f"done: {done} steps; samples in {run.run_dir / 'samples'}"
        return End(state="finished", text=text, is_saved=True)
    if done == first:
        when = f"stopped before the first step, at step {done} of {run.last_step} ({reason})"
    else:
        when = f"stopped after step {done} of {run.last_step} ({reason}) and saved"
    return End(state="stopped", text=f"{when}; the same command resumes the run", is_saved=done > first)


def _how_to_continue(run: Run) -> str:
    """Suggest how to train further when the last step of a run is reached."""
    if run.last_step < run.plan.total_steps:
        return "raise --max-steps to continue"
    *others, last = run.plan.stages
    if (steps := run.plan.steps_of(len(others))) < last.steps:
        return (
            f"the last stage, {last.name}, has ended after {steps} of {last.steps} steps: its metric no longer improved"
        )
    more = 2 * last.steps
    if not others and run.config.stages is None and getattr(run.recipe.options, "steps", 0) == last.steps:
        return f"for more, give --steps {more}"
    longer = stage_steps([*named_steps(others), [last.name, more]])
    return f"give the last stage, {last.name}, more than {last.steps} steps to continue, such as --stages {longer}"


def _position(run: Run, step: int) -> str:
    if step == 0:
        return f"a new run, which {_ends(run)}"
    return f"{'resuming' if step < run.last_step else 'ended'} at step {step} of {run.last_step}"


def _ends(run: Run) -> str:
    total = run.plan.total_steps
    return f"ends at step {run.last_step:,}" + (f" of {total:,}" if run.last_step < total else "")


def start_of(run: Run, of_ranks: Sequence[Device], step: int) -> Start:
    """The facts of a start."""
    job, restart = requeued() or ("", 0)
    return Start(
        version=__version__,
        command=_command(),
        recipe=run.config.recipe,
        step=step,
        last_step=run.last_step,
        ranks=run.ranks.size,
        hosts=len({device.host for device in of_ranks}),
        launcher=run.ranks.launcher,
        is_elastic=bool(run.ranks.slice_unit),
        slurm_job=job,
        slurm_restart=restart,
        networks=list(_networks(run)),
        stages=[_stage(run, step, run.ranks.size) for step in run.steps],
        data=list(_data(run)),
        changed=changed_flags(run.config, run.recipe.options),
        machine=[
            f"hvdgan {__version__}, recipe {run.config.recipe}; {_versions(run)}",
            _ranks(run, of_ranks),
            "; ".join(devices.by_host(of_ranks)),
        ],
    )


def _command() -> str:
    """The command line of this process, with short names of Python and of a script."""
    program = Path(sys.argv[0])
    is_module = program.suffix == ".py" and program.parent.name == "hvdgan"
    first = ["hvdgan", program.stem] if is_module else [program.name]
    return shlex.join([*first, *sys.argv[1:]])


def _lines(run: Run, start: Start, folder: str) -> list[str]:
    """Describe a run in lines, the last but one that of its flags; they are not wrapped, so that grep finds words."""
    networks = (
        f"{each.name} {each.trainable:,} trainable parameters, {each.other:,} other{', frozen' * each.is_frozen}"
        for each in start.networks
    )
    (versions, *ranks), (first, *maps) = start.machine, start.data
    lines = [
        versions,
        f"networks: {'; '.join(networks)}",
        *([f"frozen by --freeze: {list_some([each.path for each in run.state.held])}"] if run.state.held else []),
        *_state(run),
        f"data: {first}",
        *maps,
        *map(_updates, start.stages),
        *_averages(run),
        *ranks,
        *_evaluations(run),
    ]
    settings = f"differs from the defaults: {' '.join(start.changed)}" if start.changed else "all settings are defaults"
    return [printable(line) for line in (*lines, settings, folder)]


def _wrapped(line: str) -> list[str]:
    """Break a line between words: at the width of the terminal, at most at 110 columns."""
    width = min(110, shutil.get_terminal_size().columns) if sys.stderr.isatty() else 110
    return textwrap.wrap(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _versions(run: Run) -> str:
    """The versions of the libraries and, on rank 0, which writes the lines, the commit of the user's code."""
    text = f"Python {platform.python_version()}, TensorFlow {tf.__version__}, Keras {keras.__version__}"
    if run.ranks.size > 1:
        text += f", Horovod {backend.build()['version']}"
    code = _code(run.recipe) if run.ranks.is_root else ""
    return f"{text}; {code}" if code else text


def _code(recipe: Recipe) -> str:
    """The commit of the folder of a recipe of the user's own; for a recipe of hvdgan, of the working folder."""
    folder = Path.cwd()
    with contextlib.suppress(TypeError, OSError):  # a class of a notebook
        if not type(recipe).__module__.startswith("hvdgan."):
            folder = Path(inspect.getfile(type(recipe))).absolute().parent
    return git_state(folder)


def _state(run: Run) -> Iterator[str]:
    """What the recipe keeps besides its networks."""
    if declared := run.state.declared_state.declared:
        shapes = (
            f"{name} {tuple(each.initial.shape)}{' per sample' * each.per_sample}" for name, each in declared.items()
        )
        yield f"state: {'; '.join(shapes)}"


def _networks(run: Run) -> Iterator[NetworkFacts]:
    for name, network in {**run.state.networks, **run.state.frozen}.items():
        trainable, is_frozen = _size(network.trainable_variables), name in run.state.frozen
        other = network.count_params() - trainable
        yield NetworkFacts(name=name, trainable=trainable, other=other, is_frozen=is_frozen)


def _size(variables: Sequence[keras.Variable]) -> int:
    return sum(int(np.prod(variable.shape)) for variable in variables)


def _data(run: Run) -> Iterator[str]:
    held_out = {} if run.held_out is None else run.held_out.domains
    for domain, (name, source) in zip(run.recipe.domains or [""], run.source.domains.items(), strict=True):
        text = f"{domain}: " * bool(domain) + f"{source.name}, {len(source):,} {_samples_of(source)}"
        if source.num_classes:
            text += f" in {source.num_classes:,} classes"
            if names := source.class_names:
                text += f" ({in_short([f'{number}: {name}' for number, name in enumerate(names)])})"
        if held_out:
            text += f", and {len(held_out[name]):,} held out"
        yield "; ".join([text, *source.assumed_axes])
        if not source.is_pictures or source.conditions is not None or source.arrays:
            yield from (f"values of {line}" for line in source.values.lines())


def _samples_of(source: Samples) -> str:
    """Describe the shape and type of the samples."""
    layout = source.layout
    what = "pairs of " if source.paired else ""
    kind = "pictures" if source.is_pictures else f"{source.stored_dtype} arrays"
    kind = kind if source.rate is None else f"waves of {source.rate:,} samples per second, in segments"
    text = f"{what}{kind} of shape {layout.shape}"
    if layout.input_shape not in (None, layout.shape):
        text += f" with inputs of shape {layout.input_shape}"
    if source.arrays:
        named = (f"{name} {shape}" for name, shape in arrays_seen(source, source.values).items())
        text += f" with arrays {', '.join(named)}"
    return text if layout.crop is None else f"{text}, of which networks see {layout.seen} (--crop)"


def _stage(run: Run, step: StageStep, size: int) -> StageFacts:
    """A stage, and the bytes that its updates all-reduce over this many ranks: 4 for each parameter, 2 in float16.

    Those of batch.mean, sum and gather are among them.
    """
    bytes_each, peers = 2 if run.config.compression == "fp16" else 4, size > 1
    updates = [
        UpdateFacts(
            name=each.name,
            owns=[*each.owns],
            every=each.every,
            bytes=peers * round(bytes_each * each.reduce * _size(step.variables(each)) + step.traffic[each.name].bytes),
            reduce=each.reduce,
        )
        for each in step.stage.updates
    ]
    stage = step.stage
    return StageFacts(name=stage.name, steps=stage.steps, updates=updates, together=stage.together)


def _updates(stage: StageFacts) -> str:
    """A stage with its updates."""
    order = ", simultaneous" * stage.together
    return f"stage {stage.name}, {stage.steps:,} steps{order}: {'; '.join(map(_update, stage.updates))}"


def _update(update: UpdateFacts) -> str:
    """An update with what it owns."""
    text = f"{update.name} owns {', '.join(update.owns)}"
    if not update.reduce:
        text += ", on each rank for itself"
    if update.bytes:
        text += f" and all-reduces {update.bytes:,} bytes"
    return text if update.every == 1 else f"{text}, every {update.every} steps"


def _averages(run: Run) -> Iterator[str]:
    if (half_life := run.config.ema_half_life) is not None:
        steps = half_life / run.config.global_batch_size
        yield (
            f"average of {', '.join(run.state.ema)}: half-life {half_life:,.0f} images, {steps:,.4g} steps; "
            f"less in the first {half_life / RAMP_UP:,.0f} images"
        )


def _ranks(run: Run, of_ranks: Sequence[Device]) -> str:
    ranks, batch_size = run.ranks, run.config.global_batch_size
    hosts = len({device.host for device in of_ranks})
    counts = sorted({round(weight * batch_size / ranks.size) for weight in ranks.weights(batch_size)})
    again = requeued()
    where = "one process" if ranks.size == 1 else f"{ranks.size} rank(s) on {hosts} host(s)"
    if ranks.size > 1:
        collectives = _collectives(ranks, on_gpu=of_ranks[0].gpu is not None)
        where += f", launcher {ranks.launcher}{', elastic' if ranks.slice_unit else ''}, {collectives}"
    where += f"; {' or '.join(map(str, counts))} images{' each' * (ranks.size > 1)} per step"
    return where + (f"; Slurm job {again[0]}, restart {again[1]}" if again else "")


def _collectives(ranks: Ranks, *, on_gpu: bool) -> str:
    names = {"mpi": "MPI", "gloo": "Gloo", "ccl": "oneCCL"}
    over = backend.controller()
    if on_gpu and not ranks.reduces_on_host and backend.build()["nccl"]:
        collectives = "NCCL"
    else:
        asked = os.environ.get("HOROVOD_CPU_OPERATIONS", over).lower()
        collectives = names.get(asked, asked)
    return f"controller {names[over]}, collectives {collectives}"


def _evaluations(run: Run) -> Iterator[str]:
    what = []
    if run.evaluator and run.evaluated and run.held_out:
        count, total = run.evaluator.count, min(map(len, run.held_out.domains.values()))
        of_all, why = (f" of {total:,}", " (--eval-held-out)") if count < total else ("", "")
        each = f" of {' and '.join(run.recipe.domains)} each" if run.recipe.domains else ""
        what.append(f"{count:,}{of_all} held-out images{each}{why}")
    if run.comparison and not run.comparison.pace:
        what.append(str(run.comparison))
    if what:
        every = run.config.evaluation.eval_every
        yield f"evaluations {f'every {every:,} steps' if every else 'at the end'}: {'; '.join(what)}"
    if run.comparison and run.comparison.pace:
        yield f"evaluations at checkpoints, in at most 2 % of the time: {run.comparison}"


def changed_flags(config: Config, options: Any) -> list[str]:
    """Write each setting that differs from its default as a flag, quoted for a shell."""
    changed = _changed(to_json(config, options), to_json(Config(), type(options)()))
    return [shlex.quote(word) for word in as_words(changed)]


def _changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values that differ from the defaults, also those of settings within settings."""
    return {
        name: _changed(value, defaults[name]) if isinstance(value, dict) else value
        for name, value in values.items()
        if value != defaults[name]
    }
