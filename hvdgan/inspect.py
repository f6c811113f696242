"""The command hvdgan inspect: shows and verifies checkpoints, or compares two."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hvdgan.checkpoints.contents import Facts, contents, difference, verified
from hvdgan.checkpoints.files import find, newest_first, read_manifest
from hvdgan.cli.app import command
from hvdgan.errors import RunError, list_some
from hvdgan.runs import metrics
from hvdgan.runs.folder import Folder

_HELP = """Show what a checkpoint holds, verify it, or compare it with another; needs neither its recipe nor TensorFlow.

RUN is a checkpoint file, or a run folder: then all checkpoints are verified, and the newest is shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Facts to show; the fields are the flags."""

    diff: Path | None = None
    """another run or checkpoint: show which tensors differ, and by how much"""
    manifest: bool = False
    """print the whole manifest of the checkpoint, as JSON, and nothing else"""
    json: bool = False
    """print one JSON object instead of lines"""


@command(name="inspect", help_text=_HELP)
def main(run: Path, /, *, request: Annotated[Request, Parameter(name="*")] = Request()) -> None:
    found = find(run)
    if request.manifest:
        print(json.dumps(read_manifest(found), indent=1))
        return
    if request.diff is not None:
        facts = difference(found, find(request.diff))
        print(json.dumps(facts, indent=1) if request.json else "\n".join(_difference_in_words(facts)))
        return
    results = {checkpoint: verified(checkpoint) for checkpoint in newest_first(run / "checkpoints")[::-1] or [found]}
    # A run in progress may have deleted its oldest checkpoints by now.
    gone = [each for each, result in results.items() if each != found and not result["verified"] and not each.exists()]
    results = {each: result for each, result in results.items() if each not in gone}
    shown = {**_contents(found), **results[found]}
    listed = list(results.values()) if found != run else None
    if listed is not None:
        shown["seconds"] = metrics.read(Folder(run)).over_ranks
    if request.json:
        print(json.dumps({**({} if listed is None else {"checkpoints": listed}), "checkpoint": shown}, indent=1))
    else:
        print("\n".join([*map(_one_line, listed or ()), *_in_words(shown)]))
    if bad := [result for result in results.values() if not result["verified"]]:
        what = "is damaged: {} differs from what was written"
        raise RunError(
            "; ".join(each["problem"] or f"{each['path']} {what.format(list_some(each['damaged']))}" for each in bad)
        )


def _contents(checkpoint: Path) -> Facts:
    try:
        return contents(checkpoint)
    except RunError:
        return {}  # verified() reports the same error


def _one_line(result: Facts) -> str:
    step = "no step" if result["step"] is None else f"step {result['step']:,}"
    return f"{result['path']}: {step}, {'verified' if result['verified'] else 'DAMAGED'}"


def _in_words(facts: Facts) -> Iterator[str]:
    """Format all facts of a checkpoint, one per line."""
    yield facts["path"]
    for title, lines in _titled(facts):
        for line in lines:
            yield f"  {title:14}{line}"
            title = ""


def _titled(facts: Facts) -> Iterator[tuple[str, list[str]]]:
    if "networks" in facts:
        yield "step", [f"{_count(facts['step'])}; stage {facts['stage']}, step {_count(facts['stage_step'])} of it"]
        yield "samples seen", [_count(facts["samples_seen"])]
        yield "recipe", [f"{facts['recipe']}, seed {facts['seed']}, ranks {facts['ranks']}"]
        yield "data", [f"{facts['data']['source']}, {_count(facts['data']['num_images'])} images"]
        yield "versions", [", ".join(f"{name} {version}" for name, version in (facts["versions"] or {}).items())]
        if best := facts["best"]:
            yield "best", [", ".join(f"{name} {value}" for name, value in best.items())]
        yield "size", [f"{facts['bytes']:,} bytes"]
        for kind in ("networks", "averages"):
            yield (
                kind,
                [
                    f"{name}: {counts['parameters']:,} parameters in {counts['tensors']} tensors"
                    for name, counts in facts[kind].items()
                ],
            )
        yield "optimizers", [f"{name}: {_slots_in_words(kept)}" for name, kept in facts["optimizers"].items()]
        yield "frozen", [f"{name}: SHA-256 {digest[:12]}…" for name, digest in facts["frozen"].items()]
        yield "others", [f"{name} {tuple(shape)}" for name, shape in facts["others"].items()]
    for part, seconds in facts.get("seconds", {}).items():
        numbers = ", ".join(f"{1e3 * each:.3g}" for each in seconds)
        yield "ranks", [f"{metrics.PARTS[part]} for {numbers} ms a step (least, median, most)"]
    yield "verified", _verified_in_words(facts)


def _slots_in_words(kept: Facts) -> str:
    return "; ".join(
        [", ".join(f"{count} {slot}" for slot, count in kept["slots"].items()), ", ".join(kept["scalars"])]
    )


def _verified_in_words(facts: Facts) -> list[str]:
    if facts["verified"]:
        return ["yes: every tensor is what was written"]
    return [f"NO: {facts['problem'] or 'these tensors are not what was written'}", *facts["damaged"]]


def _difference_in_words(facts: Facts) -> Iterator[str]:
    for which in ("first", "second"):
        yield f"{which:9} {facts[which]['path']}, step {_count(facts[which]['step'])}"
    yield f"identical {facts['identical']:,} tensors"
    for which in ("first", "second"):
        for name in facts[f"only_in_{which}"]:
            yield f"only in the {which}: {name}"
    for unlike in facts["unlike"]:
        kinds = [f"{unlike[which]['dtype']} {tuple(unlike[which]['shape'])}" for which in ("first", "second")]
        yield f"unlike: {unlike['name']} is {kinds[0]} in the first, {kinds[1]} in the second"
    for changed in facts["changed"]:
        amounts = f"{_amount(changed['max_abs'])}, relative {_amount(changed['relative'])}"
        yield f"changed: {changed['name']} by at most {amounts}"


def _amount(number: float | None) -> str:
    return "not finite" if number is None else f"{number:.3g}"


def _count(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else "unknown"


if __name__ == "__main__":
    sys.exit(main())
