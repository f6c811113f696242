"""What may differ between a checkpoint and the run that resumes it; the rest is refused by name."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from hvdgan.checkpoints.checkpoint import versions
from hvdgan.errors import UserError
from hvdgan.networks.nested_layers import layers_of
from hvdgan.recipe.schedule import checked_stages
from hvdgan.recipe.stages import LearningRate, Stage
from hvdgan.training.build import Run
from hvdgan.training.frozen import differing, refuse_other_frozen
from hvdgan.training.resume_point import ResumePoint
from hvdgan.values import sample_values
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import ValueMap

# Settings that may differ without changing the results, except for the last bits. The data may be named differently or
# have moved: its fingerprint is compared.
_MAY_CHANGE = {
    "accumulate",
    "best_metric",
    "best_mode",
    "channels",
    "check_ranks_every",
    "checkpoint_every",
    "compression",
    "condition_order",
    "data",
    "data_options",
    "deterministic",
    "eval_every",
    "eval_features",
    "eval_held_out",
    "eval_real_samples",
    "eval_resize",
    "eval_samples",
    "fit",
    "gpu_memory_limit",
    "image_size",
    "inception",
    "keep",
    "log_every",
    "logger",
    "max_bad_fraction",
    "max_bad_steps",
    "max_steps",
    "other_data",
    "peer_timeout",
    "pipeline",
    "report",
    "run_dir",
    "sample_every",
    "share_gpu",
    "stall_timeout",
}
# Settings that change the results; allowed, with a warning.
_WITH_WARNING = {"global_batch_size"}
_MAP_FLAGS = {
    "images": "values",
    "inputs": "input_values",
    "conditions": "condition_values",
    "constants": "constant_values",
}
_ANEW = "start anew in another --run-dir, or allow it with --allow-changed"


def check_checkpoint(run: Run, source: Path, manifest: Mapping[str, Any], allowed: Collection[str]) -> list[str]:
    """Refuse to resume a checkpoint of another run than this one; returns lines about what may differ and does."""
    lines = _settings(run, source, manifest["config"], allowed, manifest["stage_index"])
    if not {"stages", *_changed(run, manifest["config"])} & {*allowed, *run.recipe.may_change}:
        _check_stages(run, source, manifest["stages"])
    lines += [*_code(run, source, manifest), *_versions(manifest)]
    # Another setting may be the cause, such as the name of a file of weights.
    lines += refuse_other_frozen(source, manifest["frozen"], run.frozen, allowed=bool(allowed))
    if "data" not in allowed:
        lines += _check_data(run, source, manifest["data"])
    before, spec = manifest["data"]["spec"], run.recipe.data
    for saved, now in (
        (before, spec),
        *((before["domains"].get(name, {}), spec.domains[name]) for name in spec.domains),
    ):
        lines += _class_names(source, saved.get("class_names", ()), now.class_names)
        lines += [each for each in _value_maps(source, saved.get("values"), now.values, allowed) if each not in lines]
    return lines


def _settings(
    run: Run, source: Path, before: Mapping[str, Any], allowed: Collection[str], stage_index: int
) -> list[str]:
    """Refuse settings with which the resumed run would compute something else than the interrupted one.

    stage_index: number of the stage in which the checkpoint was made.
    """
    now, free = run.settings(), _MAY_CHANGE | set(run.recipe.may_change)
    refused, lines = list[str](), list[str]()
    of_places = [name for name, state in run.state.recipe_state.declared.items() if state.per_sample]
    if of_places and before.get("global_batch_size") != now["global_batch_size"]:
        raise UserError(
            f"--resume: {source} was made with --global-batch-size {before.get('global_batch_size')}, and this run has "
            f"{now['global_batch_size']}; the recipe's state per sample has that size ({', '.join(of_places)}); "
            "keep it, or start anew in another --run-dir"
        )
    for key in _changed(run, before):
        difference = f"{key} was {before.get(key)!r} and is now {now.get(key)!r}"
        if key in free:
            lines += _micro_batches(run, difference) if key == "accumulate" else [difference] * (key == "data_options")
        elif key not in now:
            lines.append(f"warning: {key} was {before[key]!r}, and there is no such option any more")
        elif key in _WITH_WARNING or key in allowed:
            lines.append(f"warning: {difference}")
        elif (stages := _stages_with(run, key, before)) and _only_last_differs(*stages):
            lines += _about_last_stage(run, key, difference, stages[1][-1], begun=len(stages[1]) - 1 == stage_index)
        else:
            refused.append(key)
    if refused:
        key = refused[0]
        more = f" (and {', '.join(refused[1:])})" if refused[1:] else ""
        was, keep = f"with {key} {before.get(key)!r}", f"keep it{_hint(run, key, before)}, {_ANEW}"
        if key not in before:
            was, keep = f"before there was an option {key}", _ANEW
        raise UserError(
            f"--resume: {source} was made {was}, and this run has {now[key]!r}{more}; {keep} {','.join(refused)}"
        )
    return lines


def stage_steps(stages: Sequence[Stage]) -> str:
    """Write stages in the form of --stages."""
    return ",".join(f"{stage.name}={stage.steps}" for stage in stages)


def _changed(run: Run, before: Mapping[str, Any]) -> list[str]:
    now = run.settings()
    return [key for key in {**now, **before} if now.get(key) != before.get(key)]


def _stages_with(run: Run, key: str, before: Mapping[str, Any]) -> tuple[Sequence[Stage], Sequence[Stage]] | None:
    """The stages with a setting's earlier value, and with its present one; None if they do not depend on it."""
    recipe = run.recipe
    try:
        value = before[key]
        if key == "stages":
            earlier = checked_stages(recipe.stages(), list(run.state.networks), value, frozen=run.state.frozen)
            return earlier, run.schedule.stages
        if key not in {field.name for field in dataclasses.fields(recipe.options)} or isinstance(value, dict):
            return None
        options = dataclasses.replace(recipe.options, **{key: tuple(value) if isinstance(value, list) else value})
        return type(recipe)(options, recipe.data).stages(), recipe.stages()
    except Exception:  # the recipe's code may raise anything for a value that it did not ask for
        return None


def _only_last_differs(before: Sequence[Stage], now: Sequence[Stage]) -> bool:
    """Check that the stages differ in nothing but the number of steps of the last one."""
    steps, steps_now = [stage.steps for stage in before], [stage.steps for stage in now]
    same = [_facts(stage) for stage in before] == [_facts(stage) for stage in now]
    return same and steps[:-1] == steps_now[:-1] and steps != steps_now


def _facts(stage: Stage) -> tuple[Any, ...]:
    updates = [(u.name, list(u.owns), u.every, u.learning_rate, u.betas, u.clip_norm, u.reduce) for u in stage.updates]
    return stage.name, stage.reset_optimizers, stage.until, stage.size, stage.level, updates


def _about_last_stage(run: Run, key: str, difference: str, last: Stage, *, begun: bool) -> Iterator[str]:
    """Yield lines about the changed number of steps of the last stage."""
    if key != "stages" and run.config.stages is not None:
        yield f"{difference}: without effect on the steps, which --stages gives"
        return
    read = f"; a loss that reads {key} differs from before, too" if key != "stages" else ""
    yield f"{difference}: of the stages, it changes only the number of steps of the last one, {last.name}{read}"
    rates = {f"learning rate of {update.name}": update.learning_rate for update in last.updates}
    moving = [n for n, rate in rates.items() if isinstance(rate, LearningRate) and rate.decay != "constant"]
    moving += ["level"] if last.level is not None and last.level[0] != last.level[1] else []
    if begun and moving:
        yield f"warning: {', '.join(moving)}: moves over all steps of stage {last.name}, so differs from before"


def _hint(run: Run, key: str, before: Mapping[str, Any]) -> str:
    """Suggest how to give only the last stage more steps, where an option changes those of other stages too."""
    stages = None if key == "stages" or before.get("stages") is not None else _stages_with(run, key, before)
    if not stages or stage_steps(stages[0]) == stage_steps(stages[1]):
        return ""
    return f", and give the last stage alone more steps with --stages {stage_steps([*stages[0][:-1], stages[1][-1]])}"


def _check_stages(run: Run, source: Path, before: Sequence[Sequence[Any]]) -> None:
    """Refuse other stages than a checkpoint was made with, even if only the recipe's code has changed."""
    now = [[stage.name, stage.steps] for stage in run.schedule.stages]
    if before[:-1] == now[:-1] and before[-1][0] == now[-1][0]:
        return
    was = ",".join(f"{name}={steps}" for name, steps in before)
    raise UserError(
        f"--resume: {source} was made with the stages {was}, and this run has {stage_steps(run.schedule.stages)}; only "
        f"the steps of the last may change: keep the others, {_ANEW} stages"
    )


def _micro_batches(run: Run, difference: str) -> Iterator[str]:
    """Yield a warning if the size of the micro-batches changes the results of a network."""
    norm = keras.layers.BatchNormalization
    names = sorted(
        name
        for name, network in run.state.networks.items()
        if any(isinstance(each, norm) for each in layers_of(network))
    )
    if names:
        yield f"warning: {difference}: BatchNormalization in {', '.join(names)} sees micro-batches of another size"


def _code(run: Run, source: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Name the files of the user's code that differ from those a checkpoint was made with, in at most one line."""
    if changed := differing(manifest["code"], run.code):
        yield (
            f"warning: {', '.join(changed)}: edited since {source.name} was made; the run resumes with the code as it "
            "is now, and differs from the run that it would have been"
        )


def _versions(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Say which libraries that compute the numbers are of other versions than those of a checkpoint."""
    before, now = manifest["versions"], versions()
    names = {"tensorflow": "TensorFlow", "keras": "Keras", "numpy": "NumPy"}
    changed = [
        f"{name} was {before[key]} and is now {now[key]}" for key, name in names.items() if before.get(key) != now[key]
    ]
    if changed:
        yield f"{', '.join(changed)}: the run resumes where it was, and its last bits may differ from here on"


def _check_data(run: Run, source: Path, before: Mapping[str, Any]) -> Iterator[str]:
    if before["fingerprint"] != run.source.fingerprint:
        classes, classes_now = before["spec"]["num_classes"], run.recipe.data.num_classes
        others = "" if classes == classes_now else f"; {classes} classes then, {classes_now} now"
        raise UserError(
            f"--resume: {source} was made with other images than those of {run.source.name}, or other --channels "
            f"({before['num_images']} images then, {len(run.source)} now{others}); restore them, {_ANEW} data"
        )
    if any(None not in each and each[0] != each[1] for each in zip(before.get("stamps", ()), run.stamps, strict=False)):
        yield f"the files of --data have other sizes or times than at {source.name}; 64 samples looked at are the same"


def _class_names(source: Path, before: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    """Refuse classes that have other numbers than in a checkpoint, whose networks know the numbers only."""
    numbers = {name: number for number, name in enumerate(now)}
    if moved := [name for number, name in enumerate(before) if numbers.get(name, number) != number]:
        was, is_now = before.index(moved[0]), numbers[moved[0]]
        raise UserError(
            f"--resume: {source} was made with class {moved[0]} as number {was}, which is now {is_now}; classes are "
            "numbered in the order of their names: name new ones so that they come last, or start anew in another "
            "--run-dir"
        )
    if changed := [f"{was} is now {new}" for was, new in zip(before, now, strict=False) if was != new]:
        yield f"warning: class {', class '.join(changed)}"


def _value_maps(
    source: Path, saved: dict[str, Any] | None, now: SampleValues | None, allowed: Collection[str]
) -> Iterator[str]:
    """Refuse other value maps than those of a checkpoint, whose networks learned the numbers that those gave.

    The fingerprint of arrays covers 64 samples only.
    """
    if saved is None or now is None:
        return
    parts = sample_values.of_json(saved).parts()
    for part, new in now.parts().items():
        old = parts[part]
        if old is None or new is None or _numbers(old) == _numbers(new):  # parts come and go by settings
            continue
        same = " (its statistics)" if str(old) == str(new) else ""
        difference = f"it was {old} and is now {new}{same}"
        if not {"data", _MAP_FLAGS[part]} & set(allowed):
            raise UserError(
                f"--resume: {source} was made with another value map of the {part}: {difference}; the data or the map "
                "have changed, or samples are left out now whose numbers the file declares to be missing or not valid: "
                f"restore them, {_ANEW} data"
            )
        yield f"warning: the value map of the {part} has changed: {difference}"


def _numbers(value_map: ValueMap) -> dict[str, Any]:
    """What a map computes, as JSON types; names and units of channels change no number."""
    return {**value_map.to_json(), "channels": len(value_map.channels), "units": []}


def drop_incomparable(run: Run, resume_point: ResumePoint) -> None:
    """Drop saved distances that those of this run cannot be compared with; every rank calls this."""
    progress, step = resume_point.progress, resume_point.step
    before = progress.get("scale")
    if run.comparison is None or not before or before == (now := run.comparison.scale()):
        return
    if progress["best"] and progress["best"]["metric"] in run.comparison.names:
        progress["best"] = None
    until = run.schedule.at(max(step - 1, 0)).stage.until
    if until is not None and until.metric in run.comparison.names:
        progress["ranks"] = [{**each, "watch": None} for each in progress["ranks"]]
    changed = ", ".join(sorted(name for name in before | now if before.get(name) != now.get(name)))
    resume_point.remarks.append(
        f"warning: samples are compared in another way than before ({changed}), so the distances up to step {step} "
        "have another scale than those after it; the best checkpoint and a plateau by them are sought anew"
    )
