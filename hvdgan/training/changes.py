"""Checks that the settings of a resumed run may differ from those of its checkpoint."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import keras

from hvdgan.checkpoints.versions import versions
from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.networks.nested_layers import layers_of
from hvdgan.recipe import Recipe
from hvdgan.recipe.recipe import NoOptions
from hvdgan.recipe.stage_checks import checked_stages
from hvdgan.recipe.stages import LearningRate, Stage
from hvdgan.training.run import Run
from hvdgan.training.saved_settings import to_json
from hvdgan.training.value_maps import is_as_before

# Settings that may differ without changing the results, except for the last bits.
# The data may be named differently or have moved: its fingerprint is compared.
_MAY_CHANGE = {"run_dir", "max_steps", "max_bad_fraction", "pipeline", "data", "channels", "accumulate", "compression"}
_MAY_CHANGE |= {"image_size", "fit", "log_every", "sample_every", "eval_every", "eval_images", "checkpoint_every"}
_MAY_CHANGE |= {"max_bad_steps", "keep", "report", "check_ranks_every", "best_metric", "best_mode", "deterministic"}
_MAY_CHANGE |= {"jit", "data_options"}
_MAY_CHANGE |= {"peer_timeout", "stall_timeout", "eval_samples", "eval_features", "eval_resize", "inception"}
_MAY_CHANGE |= {"gpu_memory_limit", "share_gpu", "eval_real_samples"}
# Settings that an older config.json lacks, and whose default is not None.
_DEFAULTS = {name: to_json(Config(), NoOptions())[name] for name in ("crop", "flip_axes", "conditions")}
# Axes of arrays, by the names of their settings, with the names of the shapes in the facts about the data.
_AXES = {"axes": "shape", "input_axes": "input_shape"}
# Settings that change the results; allowed, with a warning.
_WITH_WARNING = {"global_batch_size"}


def check_settings(
    run: Run, source: Path, before: dict[str, Any], allowed: Sequence[str], at: dict[str, Any] | None = None
) -> list[str]:
    """Refuse settings with which the resumed run would compute something else than the interrupted one."""
    now, at = run.settings(), at or {}
    before = {**_DEFAULTS, **before}
    changed = [key for key in now | before if now.get(key) != before.get(key)]
    changed = [key for key in changed if before.get(key) is not None or not _says_what_was_assumed(run, key, at)]
    free = _MAY_CHANGE | set(run.recipe.may_change)
    refused, lines = [], []
    for key in changed:
        difference = f"{key} was {before.get(key)!r} and is now {now.get(key)!r}"
        if key in free:
            lines += _of_micro_batches(run, difference) if key == "accumulate" else []
        elif key not in now:
            lines.append(f"warning: {key} was {before[key]!r}, and there is no such option any more")
        elif key in _WITH_WARNING or key in allowed:
            lines.append(f"warning: {difference}")
        elif key in before and (stages := _stages_with(run, key, before[key])) and _last_alone_differs(*stages):
            lines += _about_last_stage(run, key, difference, *stages, begun=at.get("stage_index") == len(stages[1]) - 1)
        else:
            refused.append(key)
    if refused:
        key = refused[0]
        more = f" (and {', '.join(refused[1:])})" if refused[1:] else ""
        was, keep = f"with {key} {before.get(key)!r}", f"keep it{_hint(run, key, before, at)}, start"
        if key not in before:
            was, keep = f"before there was an option {key}", "start"
        raise UserError(
            f"--resume: {source} was made {was}, and this run has {now[key]!r}{more}; {keep} anew in another "
            f"--run-dir, or allow it with --allow-changed {','.join(refused)}"
        )
    if not {"stages", *changed} & set(allowed) and not set(changed) & set(run.recipe.may_change):
        _check_stages(run, source, at.get("stages"))
    return lines


def changed_versions(manifest: Mapping[str, Any]) -> list[str]:
    """Say which libraries that compute the numbers are of other versions than those of a checkpoint."""
    before, now = manifest.get("versions") or {}, versions()
    names = {"tensorflow": "TensorFlow", "keras": "Keras", "numpy": "NumPy"}
    changed = [
        f"{name} was {before[key]} and is now {now[key]}"
        for key, name in names.items()
        if key in before and before[key] != now[key]
    ]
    if not changed:
        return []
    return [f"{', '.join(changed)}: the run resumes where it was, and its last bits may differ from here on"]


def changed_code(run: Run, source: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Name the files of the user's code that differ from those a checkpoint was made with, in at most one line."""
    before = manifest.get("code") or {}
    changed = [name for name, digest in run.code.items() if before.get(name, digest) != digest]
    if not changed:
        return []
    return [
        f"warning: {', '.join(changed)}: edited since {source.name} was made; the run resumes with the code as it is "
        "now, and differs from the run that it would have been"
    ]


def stage_steps(stages: Sequence[Stage]) -> str:
    """Write stages in the form of --stages."""
    return ",".join(f"{stage.name}={stage.steps}" for stage in stages)


def how_to_continue(run: Run) -> str:
    """Suggest how to train further when the last step of a run is reached."""
    if run.last_step < run.schedule.total_steps:
        return "raise --max-steps to continue"
    *others, last = run.schedule.stages
    if (steps := run.schedule.steps_of(len(others))) < last.steps:
        return (
            f"the last stage, {last.name}, has ended after {steps} of {last.steps} steps: its metric no longer improved"
        )
    longer = stage_steps([*others, dataclasses.replace(last, steps=2 * last.steps)])
    return f"give the last stage, {last.name}, more than {last.steps} steps to continue, such as --stages {longer}"


def _says_what_was_assumed(run: Run, key: str, at: Mapping[str, Any]) -> bool:
    """Check for a flag that names the axes or the map that arrays had without it when a checkpoint was made.

    An older version assumed some that must be given now. The fingerprint of arrays covers their axes.
    """
    before = at.get("data") or {}
    if key in _AXES:
        return bool(before.get("fingerprint") == run.source.fingerprint)
    return is_as_before(run, key, before)


def _stages_with(run: Run, key: str, value: Any) -> tuple[Sequence[Stage], Sequence[Stage]] | None:
    """Return the stages with a setting's earlier value, and with its present one; None if they cannot be made."""
    now = run.schedule.stages
    try:
        if key == "stages":
            state = run.state
            return checked_stages(run.recipe.stages(), list(state.networks), value, frozen=state.frozen), now
        earlier = _recipe_with(run.recipe, key, value)
        return None if earlier is None else (earlier.stages(), run.recipe.stages())
    except Exception:  # the recipe's code may raise anything
        return None


def _recipe_with(recipe: Recipe, key: str, value: Any) -> Recipe | None:
    """Return the recipe with another value of an option, as JSON has it; None if it has no such option."""
    if key not in {field.name for field in dataclasses.fields(recipe.options)} or isinstance(value, dict):
        return None
    options = dataclasses.replace(recipe.options, **{key: tuple(value) if isinstance(value, list) else value})
    return type(recipe)(options, recipe.data)


def _last_alone_differs(before: Sequence[Stage], now: Sequence[Stage]) -> bool:
    """Check that the stages differ only in the number of steps of the last one."""
    if [_facts(stage) for stage in before] != [_facts(stage) for stage in now]:
        return False
    return [s.steps for s in before[:-1]] == [s.steps for s in now[:-1]] and before[-1].steps != now[-1].steps


def _facts(stage: Stage) -> tuple[Any, ...]:
    updates = [(u.name, list(u.owns), u.every, u.learning_rate, u.betas, u.clip_norm) for u in stage.updates]
    return stage.name, stage.reset_optimizers, stage.until, updates


def _about_last_stage(
    run: Run, key: str, difference: str, before: Sequence[Stage], now: Sequence[Stage], *, begun: bool
) -> Iterator[str]:
    """Yield lines about the changed number of steps of the last stage, and about other effects of the setting."""
    last = now[-1]
    if key != "stages" and run.config.stages is not None:
        yield f"{difference}: without effect on the steps, which --stages gives"
    else:
        yield f"{difference}: the last stage, {last.name}, has {last.steps} steps instead of {before[-1].steps}"
    decaying = [u.name for u in last.updates if isinstance(u.learning_rate, LearningRate) and _decays(u.learning_rate)]
    if begun and decaying:
        yield (
            f"warning: the learning rate of {', '.join(decaying)} decays over the steps of stage {last.name}, so "
            "that it differs from before at the same step"
        )
    if readers := sorted(_readers(type(run.recipe), key)):
        yield f"warning: {key} is also read by {', '.join(readers)}, and changes the results there"


def _decays(rate: LearningRate) -> bool:
    return rate.decay != "constant"


def _readers(recipe: type[Recipe], option: str) -> Iterator[str]:
    """Yield the methods of a recipe, other than stages(), whose code names an option."""
    for owner in recipe.__mro__[: recipe.__mro__.index(Recipe)]:
        for name, member in vars(owner).items():
            code = getattr(member, "__code__", None)
            if name != "stages" and isinstance(code, CodeType) and option in _names(code):
                yield f"{name}()"


def _names(code: CodeType) -> set[str]:
    within = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*within)


def _shape_of(at: Mapping[str, Any], axes: str) -> Sequence[int] | None:
    """The shape that the samples or the inputs of a checkpoint's data have with the channels last."""
    shape: Sequence[int] | None = ((at.get("data") or {}).get("spec") or {}).get(_AXES[axes])
    return shape


def _hint(run: Run, key: str, before: dict[str, Any], at: Mapping[str, Any]) -> str:
    """Suggest how to give only the last stage more steps, if a setting changes the steps of other stages too.

    If axes are given that differ from those that were assumed, name these.
    """
    if key in _AXES and before.get(key) is None and (shape := _shape_of(at, key)):
        return f", or give --{key.replace('_', '-')} {'DHWC'[-len(shape) :]}, which was assumed"
    stages = None if key == "stages" else _stages_with(run, key, before.get(key))
    if not stages or before.get("stages") is not None or [s.steps for s in stages[0]] == [s.steps for s in stages[1]]:
        return ""
    earlier, now = stages
    return f", and give the last stage alone more steps with --stages {stage_steps([*earlier[:-1], now[-1]])}"


def _check_stages(run: Run, source: Path, before: list[list[Any]] | None) -> None:
    """Refuse other stages than a checkpoint was made with, even if only the recipe's code has changed."""
    now = [[stage.name, stage.steps] for stage in run.schedule.stages]
    if not before or (before[:-1] == now[:-1] and before[-1][0] == now[-1][0]):
        return
    was = ",".join(f"{name}={steps}" for name, steps in before)
    raise UserError(
        f"--resume: {source} was made with the stages {was}, and this run has {stage_steps(run.schedule.stages)}; only "
        "the steps of the last may change: keep the others, start anew in another --run-dir, or allow it with "
        "--allow-changed stages"
    )


def _of_micro_batches(run: Run, difference: str) -> list[str]:
    """Return a warning if the size of the micro-batches changes the results of a network."""
    norm = keras.layers.BatchNormalization
    names = sorted(
        name
        for name, network in run.state.networks.items()
        if any(isinstance(each, norm) for each in layers_of(network))
    )
    if not names:
        return []
    return [f"warning: {difference}: BatchNormalization in {', '.join(names)} sees micro-batches of another size"]
