"""Checkpoints: every tensor by its own name, written by rank 0 alone, complete or not there at all."""

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
from hvdgan.checkpoints.files import FORMAT_VERSION, named_latest, read_tensors
from hvdgan.checkpoints.files import LATEST as _LATEST
from hvdgan.checkpoints.files import MANIFEST as _MANIFEST
from hvdgan.checkpoints.files import STATE as _STATE
from hvdgan.checkpoints.files import DamagedCheckpoint as DamagedCheckpoint
from hvdgan.checkpoints.files import aside as aside
from hvdgan.checkpoints.files import describe as _describe
from hvdgan.checkpoints.files import list_some as _list
from hvdgan.checkpoints.files import newest as newest
from hvdgan.checkpoints.files import newest_first as newest_first
from hvdgan.checkpoints.files import read_manifest as read_manifest
from hvdgan.checkpoints.files import step_of as step_of
from hvdgan.cli.errors import RunError
from hvdgan.cli.replacing import finish_replacing, flush, replace_folder

Tensors = Mapping[str, keras.Variable]
_RANKS = "ranks/statistics"


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A moment of training in host memory: what write() brings to the disk.

    step: steps done so far.
    values: arrays by name.
    facts: what else the manifest holds: run_id, stage, data, config.
    """

    step: int
    values: dict[str, np.ndarray]
    facts: dict[str, Any]


def take(step: int, tensors: Tensors, statistics: np.ndarray, facts: dict[str, Any]) -> Snapshot:
    """Copy what a checkpoint holds to host memory.

    Args:
        step: steps done so far.
        tensors: variables by name.
        statistics: (size, n), the statistics of each rank, kept beside their means in `tensors`.
        facts: what else the manifest holds.
    """
    # numpy() is a copy, for both Keras' variables and TensorFlow's.
    values = {name: np.asarray(variable.numpy(), order="C") for name, variable in tensors.items()}
    if len(statistics) > 1 and statistics.size:
        values[_RANKS] = statistics
    return Snapshot(step, values, facts)


def put_back(tensors: Tensors, snapshot: Snapshot) -> np.ndarray:
    """Give the variables the values that take() has copied.

    Returns:
        The statistics of each rank, (size, n); (1, 0) where it was one rank, or there are none.
    """
    for name, variable in tensors.items():
        variable.assign(snapshot.values[name])
    return snapshot.values.get(_RANKS, np.zeros((1, 0), np.float32))


def write(folder: Path, snapshot: Snapshot) -> Path:
    """Write RUN_DIR/checkpoints/step-<step>; call it on rank 0 alone.

    A crash at any moment leaves the older checkpoints and `latest` as they were: the new one is written under another
    name, brought to the disk, renamed, and only then named in `latest`. Where the same step is written anew, its older
    checkpoint is there and whole until the new one is in its place; see hvdgan.cli.replacing.

    Args:
        folder: RUN_DIR/checkpoints.
        snapshot: what to write.

    Returns:
        The checkpoint's folder.

    Raises:
        RunError: it cannot be written; what was there before is untouched.
    """
    target = folder / f"step-{snapshot.step:08d}"
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": snapshot.step,
        **snapshot.facts,
        "versions": versions(),
        "tensors": {name: _describe(value) for name, value in snapshot.values.items()},
    }
    partial = folder / f".{target.name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mend(folder)
        for stale in folder.glob(".step-*.*"):  # of a write that was cut off; the run folder's lock keeps others out
            shutil.rmtree(stale, ignore_errors=True)
        partial.mkdir()
        _write(partial / _MANIFEST, json.dumps(manifest, indent=1))
        save_file(snapshot.values, partial / _STATE)
        with contextlib.suppress(OSError):  # a file system without modes
            # save_file lets nobody but the owner read it, whatever the umask says.
            (partial / _STATE).chmod((partial / _MANIFEST).stat().st_mode & 0o777)
        flush(partial / _STATE)
        flush(partial)
        replace_folder(partial, target, aside(target))
        _write(folder / f".{_LATEST}.partial", target.name + "\n")
        (folder / f".{_LATEST}.partial").rename(folder / _LATEST)
        flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RunError(f"checkpoint {target} cannot be written: {error}; free space or rights, then resume") from error
    return target


def mend(folder: Path) -> None:
    """Give checkpoints their names back that a crash in the middle of write() has left without; under the run's lock.

    Raises:
        OSError: one cannot be renamed.
    """
    for path in newest_first(folder):
        target = folder / f"step-{step_of(path):08d}"
        finish_replacing(target, aside(target))
    # An older hvdgan replaced a checkpoint under the name that pruning uses, but pruning spares the one of `latest`.
    named = named_latest(folder)
    if named is not None and not named.exists():
        older = named.with_name(f".{named.name}.deleted")
        if (older / _MANIFEST).is_file():
            finish_replacing(named, older)


def restore(
    checkpoint: Path, manifest: dict[str, Any], tensors: Tensors, only: tuple[str, ...] = ("",)
) -> np.ndarray | None:
    """Give the variables the values of a checkpoint.

    Args:
        checkpoint: its folder.
        manifest: what read_manifest returned for it.
        tensors: variables by name, all of which the checkpoint must hold.
        only: the beginnings of the names to look at; nothing else of the checkpoint is read.

    Returns:
        The statistics of each rank, (size, n); None where it was made by one, or they were not to be read.

    Raises:
        RunError: a tensor is missing, left over, of another shape or dtype, or not what was written.
    """
    values = dict(read_tensors(checkpoint, only))
    recorded = {name: facts for name, facts in manifest["tensors"].items() if name.startswith(only)}
    if damaged := sorted(name for name in recorded if name not in values or _describe(values[name]) != recorded[name]):
        raise DamagedCheckpoint(f"{checkpoint / _STATE} is damaged: {_list(damaged)} differs from what was written")
    statistics = values.pop(_RANKS, None)
    missing, left_over = sorted(tensors.keys() - values.keys()), sorted(values.keys() - tensors.keys())
    if missing or left_over:
        parts = [f"it lacks {_list(missing)}"] * bool(missing) + [f"nothing takes its {_list(left_over)}"] * bool(
            left_over
        )
        raise RunError(
            f"{checkpoint} is of other networks: {'; '.join(parts)}; give the recipe and options it was made with"
        )
    for name, variable in tensors.items():
        if values[name].shape != tuple(variable.shape) or str(values[name].dtype) != variable.dtype:
            raise RunError(
                f"{checkpoint}: {name} is {values[name].dtype} {values[name].shape}, and the network's is "
                f"{variable.dtype} {tuple(variable.shape)}; give the recipe and options it was made with"
            )
    for name, variable in tensors.items():
        variable.assign(values[name])
    return statistics


def versions() -> dict[str, str]:
    """What computed the numbers: the versions of hvdgan and what it stands on."""
    return {
        "hvdgan": __version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    flush(path)
