"""Copies variables to a snapshot in memory, and restores them from one or from a checkpoint by tensor name."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan import __version__
from hvdgan.checkpoints.files import DamagedCheckpoint, Snapshot, describe, is_among, list_some, read_tensors
from hvdgan.errors import UserError

Tensors = Mapping[str, keras.Variable]
_RANKS = "ranks/statistics"


def versions() -> dict[str, str]:
    """Return the version of each library by name."""
    return {
        "hvdgan": __version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }


def snapshot_of(step: int, values: dict[str, np.ndarray], statistics: np.ndarray, facts: dict[str, Any]) -> Snapshot:
    """Put copies of all variables and the statistics of each rank, (size, n), together; `values` has their means."""
    everyones = {_RANKS: statistics} if len(statistics) > 1 and statistics.size else {}
    return Snapshot(step, {**values, **everyones}, facts)


def put_back(tensors: Tensors, snapshot: Snapshot) -> np.ndarray:
    """Assign a snapshot to the variables; returns each rank's statistics, (size, n), (1, 0) if there were none."""
    for name, variable in tensors.items():
        variable.assign(snapshot.values[name])
    return snapshot.values.get(_RANKS, np.zeros((1, 0), np.float32))


def restore(
    checkpoint: Path, manifest: dict[str, Any], tensors: Tensors, only: tuple[str, ...] = ("",)
) -> np.ndarray | None:
    """Verify the tensors among `only` (see files.is_among), and assign them to exactly these variables.

    Returns each rank's statistics, (size, n), or None: the run had one rank, or `only` excludes them. A RunError says
    that a tensor is damaged; a UserError that one is missing, unknown, or has another shape or dtype than its variable.
    """
    values = dict(read_tensors(checkpoint, only))
    recorded = {name: facts for name, facts in manifest["tensors"].items() if is_among(name, only)}
    if damaged := sorted(name for name in recorded if name not in values or describe(values[name]) != recorded[name]):
        raise DamagedCheckpoint(f"{checkpoint} is damaged: {list_some(damaged)} differs from what was written")
    statistics = values.pop(_RANKS, None)
    _check_same_networks(checkpoint, values, tensors)
    for name, variable in tensors.items():
        variable.assign(values[name])
    return statistics


def _check_same_networks(checkpoint: Path, values: Mapping[str, np.ndarray], tensors: Tensors) -> None:
    missing, unknown = sorted(tensors.keys() - values.keys()), sorted(values.keys() - tensors.keys())
    problems = [f"it lacks {list_some(missing, 1)}"] if missing else []
    problems += [f"this run has no {list_some(unknown, 1)}"] if unknown else []
    if problems:
        raise UserError(
            f"{checkpoint} does not fit this run's networks: {'; '.join(problems)}; give the recipe and options it was "
            "saved with, or take its networks into a new run with --init-from"
        )
    for name, variable in tensors.items():
        if values[name].shape != tuple(variable.shape) or str(values[name].dtype) != variable.dtype:
            raise UserError(
                f"{checkpoint}: {name} is {values[name].dtype} {values[name].shape}, and the network's is "
                f"{variable.dtype} {tuple(variable.shape)}; give the recipe and options it was saved with"
            )
