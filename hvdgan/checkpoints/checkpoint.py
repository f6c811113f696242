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
from hvdgan.checkpoints.tensor_names import OF_NETWORKS, kind_of, named_of_ranks, of_one, of_ranks
from hvdgan.errors import UserError, unwritable
from hvdgan.files.replacing import finish_replacing, flush, whole_file, whole_folder

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


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The contents of a checkpoint in host memory."""

    step: int  # number of steps done
    values: dict[str, np.ndarray]  # arrays by tensor name
    facts: dict[str, Any]  # other fields of the manifest, such as run_id, stage, data and config; JSON types

    def of_ranks(self) -> dict[str, np.ndarray]:
        """The values of all ranks, (ranks, ...) or (global batch, ...), by the names of one rank's."""
        return of_ranks(self.values)

    def of_root(self) -> dict[str, np.ndarray]:
        """The values of rank 0, without state per sample, and the means of the ranks' statistics."""
        mine = {name: rows[0] for name, rows in self.of_ranks().items() if kind_of(name) in OF_NETWORKS}
        return mine | of_one(self.values)


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
        raise DamagedCheckpoint(f"{checkpoint / STATE} is damaged: {list_some(damaged)} differs from what was written")
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
