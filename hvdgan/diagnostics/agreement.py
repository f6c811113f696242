"""Compares what hvdgan.diagnostics.trial has found on one rank and on two; it needs no TensorFlow."""

import collections
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_MARGIN = 3.0
"""factor by which ranks may differ more than the nudged trials of one rank do"""
_ROUNDING = 1e-5
"""relative difference that may always be rounding"""
_OF_SAMPLES = 1e-4
"""largest difference of samples that may be rounding, in units of their standard deviation"""
_NUDGED = ("1", "2")


def compare_steps(folder: Path, facts: Mapping[str, Any]) -> tuple[float, str, str]:
    """Compare the tensors of all steps, in the order in which the updates change them.

    Returns the largest difference of the networks of an update, relative to their norm, the first tensor that differs
    by more than rounding, and the likely cause; two empty ones if there is none.
    """
    largest = 0.0
    with np.load(folder / "1.npz") as one, np.load(folder / "2.npz") as two:
        known = {name.partition("/")[2].partition("/")[2] for name in two if name.startswith("0/")}
        for step, update, tensors in _in_order(facts, known):
            found = {name: _norms(one, two, step, name) for name in tensors}
            scales = collections.defaultdict[str, float](float)
            for name, (_, _, norm) in found.items():
                scales[name.partition("/")[0]] = max(scales[name.partition("/")[0]], norm)
            for name, (apart, nudged, norm) in found.items():
                if apart > _MARGIN * nudged + _ROUNDING * (norm + scales[name.partition("/")[0]]):
                    relative, rounding = (each / norm if norm else float(each > 0) for each in (apart, nudged))
                    differs = f"{name} differs by {relative:.1g} (by rounding: {rounding:.1g})"
                    return relative, f"step {step}, stage {update}: {differs}", _cause(name, update, facts)
            mine = [each for name, each in found.items() if name.startswith("networks/")]
            apart, _, norm = np.linalg.norm(np.reshape(mine, (-1, 3)), axis=0)
            largest = max(largest, apart / norm if norm else 0.0)
    return largest, "", ""


def compare_samples(folder: Path) -> list[str]:
    """Name the arrays of samples that are not the same on two ranks as on one."""
    with np.load(folder / "1.npz") as one, np.load(folder / "2.npz") as two:
        return [name for name in one if name.startswith("samples/") and not are_alike(one[name], two[name])]


def are_alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays of samples differ by no more than rounding."""
    if one.shape != other.shape:
        return False
    most = float(np.abs(one.astype(np.float64) - other).max(initial=0.0))
    return most <= _OF_SAMPLES * float(one.std(dtype=np.float64))


def _in_order(facts: Mapping[str, Any], known: set[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Yield each step, each of its updates, and the tensors of that: state of layers, slots, then the others."""
    for step, updates in enumerate(facts["steps"]):
        rest = known
        for update in updates:
            mine = known & {*facts["owned"][update]}
            rest = rest - mine
            yield step, update, sorted(mine, key=lambda name: (name not in facts["layer_state"], name[0] != "o", name))
        yield step, (updates or [""])[-1], sorted(rest)


def _norms(one: Mapping[str, Any], two: Mapping[str, Any], step: int, name: str) -> tuple[float, float, float]:
    """The norms of the difference between the ranks, of the largest that a nudge makes, and of the tensor itself."""
    value = one[f"0/{step}/{name}"].astype(np.float64)
    nudged = max(float(np.linalg.norm(one[f"{trial}/{step}/{name}"] - value)) for trial in _NUDGED)
    return float(np.linalg.norm(two[f"0/{step}/{name}"] - value)), nudged, float(np.linalg.norm(value))


def _cause(name: str, update: str, facts: Mapping[str, Any]) -> str:
    """The likely cause of a difference."""
    if name in facts["layer_state"]:
        return f"{facts['layer_state'][name]} is a layer's own state, of a rank's samples; keep it in state()"
    if norms := facts["batch_norms"]:
        return f"BatchNorm is not synchronised ({norms[0]}, {len(norms)} in all); add --sync-batch-norm"
    if local := facts["not_reduced"]:
        return f"stage {local[0]} has reduce=False, so that each rank trains networks of its own"
    return f"the loss of {update.rpartition(' ')[2]} is no mean over samples; write batch.mean or batch.gather"
