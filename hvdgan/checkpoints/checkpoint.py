"""Gives the tensors of a checkpoint to variables by name."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan import __version__
from hvdgan.checkpoints.files import list_some, read
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


def load(checkpoint: Path, manifest: dict[str, Any], tensors: Tensors, only: tuple[str, ...] = ("",)) -> None:
    """Give exactly these variables the values of rank 0, verified, among `only`; the errors are those of the parts."""
    assign(tensors, read(checkpoint, only, manifest).of_root(), checkpoint)


def assign(tensors: Tensors, values: Mapping[str, np.ndarray], checkpoint: Path) -> None:
    """Give each variable the value of its name, which the checkpoint has; refuse values of other variables by name."""
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
    for name, variable in tensors.items():
        variable.assign(values[name])
