"""Checks the stages that a recipe returns, and chooses those of --stages, before anything is built from them."""

import dataclasses
import math
import numbers
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from hvdgan.cli.errors import UserError
from hvdgan.recipe.mistakes import Mistake, described, listed
from hvdgan.recipe.stages import LearningRate, Plateau, Stage, Update

STAGES = 'a list of Stage, as in [Stage("adversarial", 1000, [Update(...)])]'


def checked_stages(
    stages: Sequence[Stage], networks: Sequence[str], choice: str | None = None, *, frozen: Collection[str] = ()
) -> tuple[Stage, ...]:
    """Return the stages to run.

    Args:
        stages: stages of the recipe, at least one.
        networks: names of the networks that the recipe trains.
        choice: value of --stages, such as "completion=2000,joint=5000": any of the stages, in any order, also more
            than once; None: the stages of the recipe.
        frozen: names of its frozen networks.

    Raises:
        UserError: a stage or an update cannot be run; the message says what to change.
    """
    _check_stages(stages, set(networks), set(frozen))
    return tuple(stages) if choice is None else _choose(stages, choice)


def _check_stages(stages: Sequence[Stage], networks: set[str], frozen: set[str]) -> None:
    if not _is_list_of(stages, Stage):
        raise Mistake(f"stages() returns {listed(stages)}; it must return {STAGES}")
    if not stages:
        raise Mistake("the recipe has no stages; stages() must return at least one Stage")
    for stage in stages:
        _check_name(stage.name, f"stage {stage.name}", stage)
    _check_unique([stage.name for stage in stages], "stages() of the recipe", "stage", stages[-1])
    for stage in stages:
        _check_stage(stage, networks | frozen)
    for where, update in ((f"stage {stage.name}, update {u.name}", u) for stage in stages for u in stage.updates):
        if owned := frozen & set(update.owns):
            raise Mistake(
                f"{where}: it owns {_names(owned)}, which has no trainable variables; leave trainable = False out, as "
                "an update changes only what it owns, or leave the frozen network out of owns",
                update,
            )
    unowned = networks - {name for stage in stages for name in stage.owns}
    if unowned:
        raise Mistake(
            f"no update owns {_names(unowned)}; name it in some update's owns, set its trainable = False in networks() "
            "if it is frozen, or leave it out"
        )


def _check_stage(stage: Stage, networks: set[str]) -> None:
    where = f"stage {stage.name}"
    if not _is_whole(stage.steps):
        raise Mistake(f"{where}: steps is {described(stage.steps)}; it must be a whole number of at least 1", stage)
    if stage.steps < 1:
        raise Mistake(f"{where}: {stage.steps} steps; a stage needs at least 1, or leave it out", stage)
    if not _is_list_of(stage.updates, Update):
        raise Mistake(f"{where}: updates is {listed(stage.updates)}; it must be a list of Update", stage)
    if not stage.updates:
        raise Mistake(f"{where}: no updates; give it at least one Update, or leave it out", stage)
    for update in stage.updates:
        _check_name(update.name, f"{where}, update {update.name}", update)
    _check_unique([update.name for update in stage.updates], where, "update", stage)
    for update in stage.updates:
        _check_update(stage, update, networks)
    until = stage.until
    if until is not None and not isinstance(until, Plateau):
        raise Mistake(f"{where}: until is {described(until)}; it must be a Plateau", stage)
    if until and not (until.window >= 1 and until.patience >= 1 and until.min_delta >= 0):
        raise Mistake(f"{where}: {until}; window and patience must be at least 1, min_delta at least 0", stage)
    if until and until.mode not in ("min", "max", None):
        raise Mistake(f"{where}: {until}; mode must be min, max or None", stage)


def _choose(stages: Sequence[Stage], choice: str) -> tuple[Stage, ...]:
    by_name = {stage.name: stage for stage in stages}
    chosen = []
    for part in choice.split(","):
        name, _, steps = part.strip().partition("=")
        if name not in by_name or not steps.isdecimal():
            known = ",".join(f"{stage.name}={stage.steps}" for stage in stages)
            raise UserError(
                f'--stages: "{part.strip()}" is not NAME=STEPS with a stage of the recipe, which are {known}'
            )
        chosen.append(dataclasses.replace(by_name[name], steps=int(steps)))
        try:
            _check_stage(chosen[-1], {owned for update in by_name[name].updates for owned in update.owns})
        except Mistake as mistake:  # the mistake is in the command line, not in the recipe
            raise UserError(f"--stages {choice}: {mistake}") from None
    return tuple(chosen)


def _check_update(stage: Stage, update: Update, networks: set[str]) -> None:
    where = f"stage {stage.name}, update {update.name}"
    if isinstance(update.owns, str) or not update.owns or not _is_list_of(update.owns, str):
        owns = repr(update.owns) if isinstance(update.owns, str) or not update.owns else listed(update.owns)
        raise Mistake(f"{where}: owns is {owns}; it must be a list of at least one network's name", update)
    _check_unique(update.owns, where, "owned network", update)
    unknown = set(update.owns) - networks
    if unknown:
        raise Mistake(f"{where}: owns {_names(unknown)}, and networks() returns {_names(networks)}", update)
    for name, is_right, wanted in _ARGUMENTS:
        value = getattr(update, name)
        if not is_right(value):
            raise Mistake(f"{where}: {name} is {described(value)}; it must be {wanted}", update)
    if not 1 <= update.every <= stage.steps:
        raise Mistake(f"{where}: every is {update.every}; it must be from 1 to the stage's {stage.steps} steps", update)
    rate = update.learning_rate
    peak = rate.peak if isinstance(rate, LearningRate) else rate
    if peak is not None and not (_is_number(peak) and 0 < peak < math.inf):
        raise Mistake(f"{where}: the learning rate is {peak}; it must be above 0", update)
    if isinstance(rate, LearningRate) and rate.decay not in ("constant", "linear", "cosine"):
        raise Mistake(
            f"{where}: the learning rate's decay is {rate.decay!r}; it must be constant, linear or cosine", update
        )
    if isinstance(rate, LearningRate) and not (0 <= rate.final < math.inf and rate.warmup_steps >= 0):
        raise Mistake(f"{where}: {rate}; final and warmup_steps must be at least 0", update)
    if update.clip_norm is not None and not update.clip_norm > 0:
        raise Mistake(f"{where}: clip_norm is {update.clip_norm}; it must be above 0", update)


def _check_name(name: str, where: str, at: Stage | Update) -> None:
    # The ranks' tensors and the metrics are named after it.
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise Mistake(f"{where}: a name is made of letters, digits, and _ . - after the first; choose another", at)


def _check_unique(names: Sequence[str], where: str, kind: str, at: Stage | Update) -> None:
    twice = {name for name in names if list(names).count(name) > 1}
    if twice:
        raise Mistake(f"{where}: {kind} {_names(twice)} is named twice; every name must be there once", at)


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_number, value))


def _is_list_of(values: Any, kind: type) -> bool:
    return isinstance(values, tuple | list) and all(isinstance(value, kind) for value in values)


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names))


# The arguments of an Update that must be of a kind.
_ARGUMENTS: Sequence[tuple[str, Callable[[Any], bool], str]] = (
    ("loss", callable, "a function of the networks and the batch, as in loss=self.judge, without brackets"),
    ("every", _is_whole, "a whole number of steps"),
    (
        "learning_rate",
        lambda v: v is None or _is_number(v) or isinstance(v, LearningRate),
        "a number or a LearningRate",
    ),
    ("betas", lambda v: v is None or _is_pair(v), "two numbers, as in (0.5, 0.999)"),
    ("clip_norm", lambda v: v is None or _is_number(v), "a number above 0"),
    ("only_if", lambda v: v is None or callable(v), "a function of the update's metrics"),
)
