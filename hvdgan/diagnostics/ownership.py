"""Runs each update of a built run alone: which variables it changes, and what it does with a sample that is NaN."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from hvdgan.checkpoints.tensor_names import LOSS_SCALES, NETWORKS, STATE, kind_of
from hvdgan.recipe.stages import Update
from hvdgan.training.build import Run
from hvdgan.training.digests import digest_of
from hvdgan.training.optimizers import changed_by
from hvdgan.training.step import Data, StageStep
from hvdgan.training.train_state import TrainState, copies_of

Digests = Mapping[str, str]


def owned_tensors(state: TrainState, update: Update) -> list[str]:
    """The names of what an update may change: its networks, their slots, and their averages."""
    own = {id(variable) for name in update.owns for variable in state.networks[name].variables}
    own -= {*map(id, state.held)}
    own |= {id(variable) for variable in changed_by(state, update)}
    pairs = itertools.chain(*state.sampling_values().values())
    own |= {id(average) for variable, average in pairs if id(variable) in own}
    return [name for name, variable in state.tensors().items() if id(variable) in own]


def check_updates(run: Run, batch: Data) -> Iterator[dict[str, Any]]:
    """For each update of each stage: the number of tensors that it changes, and those that it must not change."""
    # 8-bit numbers, which hold no NaN, as networks see them.
    clean = {name: tf.cast(x, tf.float32) / 127.5 - 1.0 if x.dtype == tf.uint8 else x for name, x in batch.items()}
    floats = {name: x for name, x in clean.items() if x.dtype.is_floating}
    with_nan = clean | {name: tf.concat([math.nan * tf.ones_like(x[:1]), x[1:]], 0) for name, x in floats.items()}
    for stage, update in ((each, update) for each in run.plan.stages for update in each.updates):
        alone = dataclasses.replace(stage, updates=(dataclasses.replace(update, every=1),), until=None)
        step = StageStep(run.recipe, run.state, alone, run.ranks, run.config)
        before, of_nan, is_refused = _tried(run, step, with_nan)
        _, after, _ = _tried(run, step, clean)
        changed, owned = _differing(before, after), {*owned_tensors(run.state, update)}
        # An update that does not read the data does the same with a NaN in them as without.
        taken = _differing(before, of_nan) if is_refused else _differing(after, of_nan)
        yield {
            "stage": stage.name,
            "update": update.name,
            "changed": len(changed & owned),
            "strays": sorted(changed - owned),
            "is_idle": update.only_if is None and not any(kind_of(name) == NETWORKS for name in changed & owned),
            "taken": sorted(taken),
        }


def _tried(run: Run, step: StageStep, data: Data) -> tuple[Digests, Digests, bool]:
    """The values before and after a step of one update, which is then undone, and whether it was refused."""
    kept = {**run.state.tensors(), **run.state.declared_state.own()}
    frozen = {f"{name}/{each.path}": each for name, net in run.state.frozen.items() for each in net.variables}
    outside = {name: each for name, each in run.state.outside.items() if isinstance(each, tf.Variable)}
    watched, start = {**kept, **frozen, **outside}, copies_of(kept)
    before = {name: digest_of([each.numpy()]) for name, each in watched.items()}
    try:
        _, finite = step(0, step.stage.steps // 2, data)
        is_refused = not finite.numpy().all()
    except tf.errors.InvalidArgumentError:  # a check of the recipe's own
        is_refused = True
    after = {name: digest_of([each.numpy()]) for name, each in watched.items()}
    for name, variable in kept.items():
        variable.assign(start[name])
    return before, after, is_refused


def _differing(one: Digests, other: Digests) -> set[str]:
    """The names of tensors with other values, without those of no network, which any update may change."""
    return {name for name in one if one[name] != other[name] and kind_of(name) not in (STATE, LOSS_SCALES)}
