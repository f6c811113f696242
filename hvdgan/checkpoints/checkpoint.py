"""Writes checkpoints atomically, on rank 0 alone, and restores variables from them by tensor name."""

import contextlib
import dataclasses
import json
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from safetensors import SafetensorError
from safetensors.numpy import save_file

from hvdgan import __version__
from hvdgan.checkpoints.files import (
    FORMAT_VERSION,
    LATEST,
    MANIFEST,
    STATE,
    DamagedCheckpoint,
    aside,
    describe,
    is_among,
    list_some,
    newest_first,
    read_tensors,
    step_of,
)
from hvdgan.errors import UserError, unwritable
from hvdgan.files.replacing import finish_replacing, flush, whole_file, whole_folder

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


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The contents of a checkpoint in host memory."""

    step: int  # number of steps done
    values: dict[str, np.ndarray]  # arrays by tensor name
    facts: dict[str, Any]  # other fields of the manifest, such as run_id, stage, data and config; JSON types


def snapshot_of(step: int, values: dict[str, np.ndarray], statistics: np.ndarray, facts: dict[str, Any]) -> Snapshot:
    """Put copies of all variables and the statistics of each rank, (size, n), together; `values` has their means."""
    everyones = {_RANKS: statistics} if len(statistics) > 1 and statistics.size else {}
    return Snapshot(step, {**values, **everyones}, facts)


def put_back(tensors: Tensors, snapshot: Snapshot) -> np.ndarray:
    """Assign a snapshot to the variables; returns each rank's statistics, (size, n), (1, 0) if there were none."""
    for name, variable in tensors.items():
        variable.assign(snapshot.values[name])
    return snapshot.values.get(_RANKS, np.zeros((1, 0), np.float32))


def write(folder: Path, snapshot: Snapshot) -> Path:
    """Write RUN_DIR/checkpoints/step-<step>; only rank 0 may call this.

    A crash at any moment leaves the older checkpoints and `latest` intact: the new checkpoint is written under a
    temporary name, flushed to the disk, renamed, and only then named in `latest`. If a checkpoint of the same step
    exists, it stays complete until the new one has taken its place (hvdgan.files.replacing).

    Returns the checkpoint's folder. A RunError says that it cannot be written; the older ones are untouched.
    """
    target = folder / f"step-{snapshot.step:08d}"
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": snapshot.step,
        **snapshot.facts,
        "versions": versions(),
        "tensors": {name: describe(value) for name, value in snapshot.values.items()},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mend(folder)
        for stale in folder.glob(".step-*.*"):  # left by an interrupted write; the run's lock keeps others out
            shutil.rmtree(stale, ignore_errors=True)
        with whole_folder(target, aside(target)) as partial:
            partial.mkdir()
            (partial / MANIFEST).write_text(json.dumps(manifest, indent=1))
            flush(partial / MANIFEST)
            save_file(snapshot.values, partial / STATE)
            with contextlib.suppress(OSError):  # a file system without modes
                # save_file makes the file readable by its owner only, whatever the umask is.
                (partial / STATE).chmod((partial / MANIFEST).stat().st_mode & 0o777)
            flush(partial / STATE)
            flush(partial)
        with whole_file(folder / LATEST, lasting=True) as latest:
            latest.write_text(target.name + "\n")
        flush(folder)
    except (OSError, SafetensorError) as error:
        raise unwritable(f"checkpoint {target}", error) from error
    return target


def mend(folder: Path) -> None:
    """Restore the names of checkpoints that a crash during write() left renamed; the caller holds the run's lock.

    Raises:
        OSError: a checkpoint cannot be renamed.
    """
    for path in newest_first(folder):
        target = folder / f"step-{step_of(path):08d}"
        finish_replacing(target, aside(target))


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
        raise DamagedCheckpoint(f"{checkpoint / STATE} is damaged: {list_some(damaged)} differs from what was written")
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
