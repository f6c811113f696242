"""What may differ between a checkpoint and the run that resumes it; the rest is refused by name."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from hvdgan.distributed.backend import versions
from hvdgan.errors import UserError
from hvdgan.networks.layers import layers_of
from hvdgan.recipe.schedule import Schedule
from hvdgan.recipe.stages import Stage
from hvdgan.training.build import Run
from hvdgan.training.digests import differing, refuse_other_frozen
from hvdgan.values import sample_values
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import ValueMap

# Settings that may differ without changing the results, except for the last bits. The data may be named differently or
# have moved: its fingerprint is compared.
_MAY_CHANGE = {
    *("data", "data_options", "other_data", "image_size", "fit", "channels", "condition_order"),
    *("run_dir", "max_steps", "log_every", "logger", "report", "sample_every", "checkpoint_every", "keep"),
    *("best_metric", "best_mode", "eval_every", "eval_features", "eval_held_out", "eval_real_samples", "eval_resize"),
    *("eval_samples", "inception", "accumulate", "compression", "deterministic", "pipeline"),
    *("gpu_memory_limit", "share_gpu", "max_bad_fraction", "max_bad_steps"),
    *("check_ranks_every", "peer_timeout", "stall_timeout", "init_from", "init_networks", "init_map"),
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


def compare(
    run: Run, source: Path, manifest: Mapping[str, Any], allowed: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """Refuse a checkpoint of another run; returns what this run can use of its progress, and lines on what differs."""
    lines = _settings(run, source, manifest, allowed)
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
    progress, dropped = _comparable(run, manifest)
    return progress, [*lines, *dropped]


def _settings(run: Run, source: Path, manifest: Mapping[str, Any], allowed: Collection[str]) -> list[str]:
    """Refuse settings with which the resumed run would compute something else than the interrupted one."""
    before = manifest["config"]
    now, free = run.settings(), _MAY_CHANGE | set(run.recipe.may_change)
    refused, lines = list[str](), list[str]()
    of_places = [name for name, state in run.state.declared_state.declared.items() if state.per_sample]
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
            lines.append(difference if key in allowed else f"warning: {difference}")
        elif _is_length_of_last(run, manifest, key):
            lines += _about_last_stage(run, key, difference, manifest["stage_index"])
        else:
            refused.append(key)
    if "recipe" in refused:
        raise UserError(
            f"--run-dir {source.parent.parent}: holds a run of the recipe {before.get('recipe')}, and this run is of "
            f"{now['recipe']}; name another --run-dir"
        )
    if refused:
        key = refused[0]
        more = f" (and {', '.join(refused[1:])})" if refused[1:] else ""
        was, keep = f"with {key} {before.get(key)!r}", f"keep it{_hint(run, manifest['stages'])}, "
        if key not in before:
            was, keep = f"before there was an option {key}", ""
        anew = f"{_ANEW} {','.join(refused)}"
        if not _fits(run, manifest):
            anew = f"{'or ' * bool(keep)}start anew in another --run-dir: the networks have other sizes now"
        raise UserError(f"--resume: {source} was made {was}, and this run has {now[key]!r}{more}; {keep}{anew}")
    return lines


def _fits(run: Run, manifest: Mapping[str, Any]) -> bool:
    """Whether the networks' tensors have the names and the sizes of those in the checkpoint."""
    saved = {name: each["shape"] for name, each in manifest["tensors"].items()}
    own = {name: list(each.shape) for name, each in run.state.tensors().items()}
    mine, theirs = ({k: v for k, v in each.items() if k.startswith("networks/")} for each in (own, saved))
    return mine == theirs


def named_steps(stages: Sequence[Stage]) -> list[list[Any]]:
    """The name and the number of steps of each stage, as a manifest has them."""
    return [[stage.name, stage.steps] for stage in stages]


def stage_steps(stages: Sequence[Sequence[Any]]) -> str:
    """Write stages, as [name, steps], in the form of --stages."""
    return ",".join(f"{name}={steps}" for name, steps in stages)


def _changed(run: Run, before: Mapping[str, Any]) -> list[str]:
    now = run.settings()
    return [key for key in {**now, **before} if now.get(key) != before.get(key)]


def _is_length_of_last(run: Run, manifest: Mapping[str, Any], key: str) -> bool:
    """Check that a setting was, and is, the number of steps of the last stage, and that the others are as before."""
    before, now = manifest["stages"], named_steps(run.plan.stages)
    values = manifest["config"].get(key), run.settings().get(key)
    return _only_last_differs(before, now) and (key == "stages" or values == (before[-1][1], now[-1][1]))


def _only_last_differs(before: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]]) -> bool:
    """Check that stages, as [name, steps], differ in nothing but the number of steps of the last one."""
    return before[:-1] == now[:-1] and before[-1][0] == now[-1][0]


def _about_last_stage(run: Run, key: str, difference: str, stage_index: int) -> Iterator[str]:
    """Yield lines about the changed number of steps of the last stage; the checkpoint is of stage `stage_index`."""
    last = run.plan.stages[-1]
    read = f"; what else reads {key} differs from before" if key != "stages" else ""
    yield f"{difference}: the last stage, {last.name}, has {last.steps} steps now{read}"
    found: dict[str, Any] = {**last.schedules}
    for each in last.updates:
        values = zip(("learning rate", "beta_1", "beta_2"), (each.learning_rate, *(each.betas or ())), strict=False)
        found |= {f"{what} of {each.name}": value for what, value in values}
    schedules = {name: each for name, each in found.items() if isinstance(each, Schedule) and each.kind != "constant"}
    moving = [name for name, each in schedules.items() if each.end not in (None, each.start)]
    if stage_index == len(run.plan.stages) - 1 and moving:
        yield f"warning: {', '.join(moving)}: move over all steps of stage {last.name}, so differ from before"


def _hint(run: Run, before: Sequence[Sequence[Any]]) -> str:
    """Suggest how to give only the last stage more steps, where an option changes those of other stages, too."""
    now = named_steps(run.plan.stages)
    if before == now or [name for name, _ in before] != [name for name, _ in now]:
        return ""
    return f", and give the last stage alone more steps with --stages {stage_steps([*before[:-1], now[-1]])}"


def _check_stages(run: Run, source: Path, before: Sequence[Sequence[Any]]) -> None:
    """Refuse other stages than a checkpoint was made with, even if only the recipe's code has changed."""
    now = named_steps(run.plan.stages)
    if not _only_last_differs(before, now):
        raise UserError(
            f"--resume: {source} was made with the stages {stage_steps(before)}, and this run has {stage_steps(now)}; "
            f"only the steps of the last may change: keep the others, {_ANEW} stages"
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
        old = parts.get(part)
        if old is None or new is None or _numbers(old) == _numbers(new):  # parts come and go by settings
            continue
        same = " (its statistics)" if str(old) == str(new) else ""
        difference = f"it was {old} and is now {new}{same}"
        if not {"data", _MAP_FLAGS.get(part, "values_of")} & set(allowed):
            raise UserError(
                f"--resume: {source} was made with another value map of the {part}: {difference}; the data or the map "
                "have changed, or samples are left out now whose numbers the file declares to be missing or not valid: "
                f"restore them, {_ANEW} data"
            )
        yield f"warning: the value map of the {part} has changed: {difference}"


def _numbers(value_map: ValueMap) -> dict[str, Any]:
    """What a map computes, as JSON types; names and units of channels change no number."""
    return {**value_map.to_json(), "channels": len(value_map.channels), "units": []}


def _comparable(run: Run, manifest: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Drop saved distances that those of this run cannot be compared with; returns the progress, and a line."""
    progress = dict(manifest["progress"])
    before, step = progress.get("scale"), manifest["step"]
    if run.comparison is None or not before or before == (now := run.comparison.scale()):
        return progress, []
    if progress["best"] and progress["best"]["metric"] in run.comparison.names:
        progress["best"] = None
    until = run.plan.stages[min(manifest["stage_index"], len(run.plan.stages) - 1)].until
    if until is not None and until.metric in run.comparison.names:
        progress["ranks"] = [{**each, "watch": None} for each in progress["ranks"]]
    changed = ", ".join(sorted(name for name in before | now if before.get(name) != now.get(name)))
    return progress, [
        f"warning: samples are compared in another way than before ({changed}), so the distances up to step {step} "
        "have another scale than those after it; the best checkpoint and a plateau by them are sought anew"
    ]
