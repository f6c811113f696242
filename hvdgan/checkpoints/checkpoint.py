"""Reads and verifies the tensors of a checkpoint, and gives them to variables by name."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan import __version__
from hvdgan.checkpoints.files import DamagedCheckpoint, Snapshot, describe, is_among, list_some, read_tensors
from hvdgan.checkpoints.tensor_names import named_of_ranks
from hvdgan.errors import UserError

Tensors = Mapping[str, keras.Variable]


def versions() -> dict[str, str]:
    """Return the version of each library by name."""
    return {
        "hvdgan": __version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }


def read(checkpoint: Path, manifest: dict[str, Any], only: tuple[str, ...] = ("",)) -> Snapshot:
    """Read and verify the tensors among `only` (see files.is_among), of one rank and of all.

    Raises:
        DamagedCheckpoint: a tensor is missing, unknown, or differs from what was written.
    """
    only = (*only, *named_of_ranks(dict.fromkeys(only)))
    values = dict(read_tensors(checkpoint, only))
    recorded = {name: facts for name, facts in manifest["tensors"].items() if is_among(name, only)}
    if damaged := sorted(
        name for name in {**recorded, **values} if name not in values or describe(values[name]) != recorded.get(name)
    ):
        raise DamagedCheckpoint(f"{checkpoint} is damaged: {list_some(damaged)} differs from what was written")
    return Snapshot(manifest["step"], {name: values[name] for name in recorded}, manifest)


def load(checkpoint: Path, manifest: dict[str, Any], tensors: Tensors, only: tuple[str, ...] = ("",)) -> None:
    """Give exactly these variables the values of rank 0, verified, among `only`; the errors are those of the parts."""
    values = read(checkpoint, manifest, only).of_root()
    check_fits(checkpoint, values, tensors)
    assign(tensors, values)


def check_fits(checkpoint: Path, values: Mapping[str, np.ndarray], tensors: Tensors) -> None:
    """Refuse values, which the checkpoint has, that are not of exactly these variables."""
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


def assign(tensors: Tensors, values: Mapping[str, np.ndarray]) -> None:
    """Give each variable the value of its name."""
    for name, variable in tensors.items():
        variable.assign(values[name])
