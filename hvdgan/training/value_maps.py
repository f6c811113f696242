"""Checks that the run which resumes maps numbers as its checkpoint did.

Functions of the user's own may have been edited, and the statistics of `standard` are computed anew for other data.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdgan.checkpoints.files import find, read_manifest
from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.shared_errors import from_root
from hvdgan.distributed.ranks import Ranks
from hvdgan.training.run import KnownMaps, Run, folder_of
from hvdgan.values import sample_values
from hvdgan.values.steps import CustomMap, Standard, Step
from hvdgan.values.value_map import ValueMap

_FLAGS = {
    "images": "values",
    "inputs": "input_values",
    "conditions": "condition_values",
    "constants": "constant_values",
}


def saved_maps(config: Config, resume: str, ranks: Ranks) -> KnownMaps | None:
    """The maps of the checkpoint that a run resumes, with their statistics, which need not be computed again then."""

    def look() -> list[Any] | None:
        folder = folder_of(config) if resume == "auto" else Path(resume)
        try:
            data = {} if resume == "never" else read_manifest(find(folder))["data"]
        except (RunError, KeyError):
            return None
        values = (data.get("spec") or {}).get("values")
        return None if values is None else [data.get("fingerprint"), values]

    found = from_root(look, ranks, "the value maps of the checkpoint")
    return None if found is None else KnownMaps(found[0], sample_values.of_json(found[1]))


def check_value_maps(run: Run, source: Path, before: Mapping[str, Any], allowed: Sequence[str]) -> list[str]:
    """Refuse other value maps than those of a checkpoint, whose networks learned the numbers that those gave.

    The fingerprint of arrays covers 64 samples only. Units are not compared: they change no number.
    """
    saved, now = (before.get("spec") or {}).get("values"), run.recipe.data.values
    if saved is None or now is None:
        return []
    lines = []
    parts = sample_values.of_json(saved).parts()
    for part, new in now.parts().items():
        if (old := parts[part]) is None or new is None:  # parts come and go by settings, which are compared
            continue
        difference = next(_differences(old, new), None)
        if difference and not {"data", _FLAGS[part]} & set(allowed):
            raise UserError(
                f"--resume: {source} was made with another value map of the {part}: {difference}; the data or the map "
                "have changed, or samples are left out now whose numbers the file declares to be missing or not valid: "
                "restore them, start anew in another --run-dir, or allow it with --allow-changed data"
            )
        if difference:
            lines.append(f"warning: the value map of the {part} has changed: {difference}")
    return lines


def is_as_before(run: Run, flag: str, before: Mapping[str, Any]) -> bool:
    """Check whether a flag declares the map that the numbers had in the run of a checkpoint."""
    saved, now = (before.get("spec") or {}).get("values"), run.recipe.data.values
    if flag not in _FLAGS.values() or saved is None or now is None:
        return False
    part = next(part for part, its in _FLAGS.items() if its == flag)
    old, new = sample_values.of_json(saved).parts()[part], now.parts()[part]
    return old is not None and new is not None and next(_differences(old, new), None) is None


def _differences(old: ValueMap, new: ValueMap) -> Iterator[str]:
    """Yield what differs between two maps, in words."""
    if len(old.channels) != len(new.channels):
        yield f"it had the channels {', '.join(old.channels)}, and has {', '.join(new.channels)} now"
        return
    for place, name in enumerate(new.channels):
        (before,), (now,) = old.channel(place).chains, new.channel(place).chains
        if [type(step) for step in before] != [type(step) for step in now]:
            yield f"channel {name} had {old.channel(place)}, and has {new.channel(place)} now"
            return
        for step, other in zip(before, now, strict=True):
            if isinstance(step, CustomMap) and isinstance(other, CustomMap) and step == other:
                if step.sha256 != other.sha256:
                    yield f"channel {name} has {step}, and {other.file} has changed"
            elif step != other:
                yield f"channel {name} had {_exactly(step)}, and has {_exactly(other)} now"


def _exactly(step: Step) -> str:
    """A step with enough digits to see a small change."""
    if isinstance(step, Standard):
        return f"mean {step.means[0]:.9g} and deviation {step.deviations[0]:.9g}"
    return str(step)
