"""Describes, verifies and compares checkpoints as JSON objects, without TensorFlow."""

import collections
import math
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.checkpoints.files import damaged, read_manifest, read_tensors
from hvdgan.checkpoints.tensor_names import EMA, NETWORKS, OF_NETWORKS, OPTIMIZERS, kind_of, of_ranks
from hvdgan.errors import RunError

_FACTS = ("step", "stage", "stage_step", "samples_seen", "seed", "ranks", "versions", "frozen")

Facts = dict[str, Any]
Shapes = dict[str, list[int]]


def contents(checkpoint: Path) -> Facts:
    """Summarise a checkpoint's manifest; a RunError says that it is damaged."""
    manifest = read_manifest(checkpoint)
    shapes = {name: tensor["shape"] for name, tensor in manifest["tensors"].items()}
    # Of a network that each rank trains for itself the file has what all ranks have.
    of_one = {**{name: shape[1:] for name, shape in of_ranks(shapes).items()}, **shapes}
    networks, averages, optimizers = (_by_network(of_one, kind) for kind in (NETWORKS, EMA, OPTIMIZERS))
    variables = set[str]().union(*networks.values())  # a network may have some of another's
    return {
        "path": str(checkpoint),
        **{fact: manifest[fact] for fact in _FACTS},
        "best": manifest.get("best"),
        "recipe": manifest["config"].get("recipe"),
        "data": {fact: manifest["data"][fact] for fact in ("source", "num_images")},
        "bytes": checkpoint.stat().st_size,
        "networks": {name: _counts(paths) for name, paths in networks.items()},
        "averages": {name: _counts(paths) for name, paths in averages.items()},
        "optimizers": {name: _slots(paths, variables) for name, paths in optimizers.items()},
        "others": {name: shape for name, shape in shapes.items() if kind_of(name) not in OF_NETWORKS},
    }


def verified(checkpoint: Path) -> Facts:
    """Verify every tensor of a checkpoint; returns "verified", the "problem" and the "damaged" tensor names."""
    facts: Facts = {"path": str(checkpoint), "step": None, "verified": False, "problem": None, "damaged": []}
    try:
        manifest = read_manifest(checkpoint)
        facts["step"] = manifest["step"]
        facts["damaged"] = damaged(checkpoint, manifest)
    except RunError as error:
        facts["problem"] = str(error)
    facts["verified"] = facts["problem"] is None and not facts["damaged"]
    return facts


def difference(first: Path, second: Path) -> Facts:
    """Compare two checkpoints tensor by tensor.

    Returns:
        "identical", the number of tensors with the same bits; "only_in_first" and "only_in_second", names; "unlike",
        the tensors whose shape or dtype differs; "changed", the other tensors, each with the largest absolute
        difference ("max_abs") and its ratio to the largest absolute value in the first ("relative"). Numbers that are
        not finite are None.

    Raises:
        RunError: a checkpoint cannot be read.
    """
    facts: Facts = {
        "first": {"path": str(first), "step": read_manifest(first)["step"]},
        "second": {"path": str(second), "step": read_manifest(second)["step"]},
        "identical": 0,
        "only_in_first": [],
        "only_in_second": [],
        "unlike": [],
        "changed": [],
    }
    others = dict(read_tensors(second))
    for name, mine in read_tensors(first):
        other = others.pop(name, None)
        if other is None:
            facts["only_in_first"].append(name)
        elif (mine.shape, mine.dtype) != (other.shape, other.dtype):
            facts["unlike"].append({"name": name, "first": _kind(mine), "second": _kind(other)})
        elif mine.tobytes() == other.tobytes():
            facts["identical"] += 1
        else:
            facts["changed"].append({"name": name, **_distance(mine, other)})
    facts["only_in_second"] = sorted(others)
    return facts


def _by_network(shapes: Shapes, kind: str) -> dict[str, Shapes]:
    """Group the tensors <kind>/<network>/<variable path>: {"generator": {variable path: shape}}."""
    found: dict[str, Shapes] = {}
    for name, shape in shapes.items():
        first, _, rest = name.partition("/")
        network, _, path = rest.partition("/")
        if first == kind:
            found.setdefault(network, {})[path] = shape
    return found


def _counts(shapes: Shapes) -> Facts:
    return {"parameters": sum(math.prod(shape) for shape in shapes.values()), "tensors": len(shapes)}


def _slots(names: Iterable[str], variables: Collection[str]) -> Facts:
    """Count a network's slots, <variable path>/<slot>, by kind, and list the other variables of its optimizers.

    If it has several optimizers, each name begins with that of the optimizer.
    """
    slots, scalars = collections.Counter[str](), list[str]()
    for name in names:
        path, _, slot = name.rpartition("/")
        optimizer, _, rest = path.partition("/")
        if path in variables or rest in variables:
            slots[slot if path in variables else f"{optimizer}/{slot}"] += 1
        else:
            scalars.append(name)
    return {"slots": dict(slots), "scalars": sorted(scalars)}


def _kind(value: np.ndarray) -> Facts:
    return {"dtype": str(value.dtype), "shape": list(value.shape)}


def _distance(first: np.ndarray, second: np.ndarray) -> Facts:
    wide = first.astype(np.float64)
    with np.errstate(invalid="ignore"):
        most = float(np.abs(second.astype(np.float64) - wide).max())
    scale = float(np.abs(wide).max())
    relative = most / scale if scale else math.inf
    return {"max_abs": _finite(most), "relative": _finite(relative)}


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
