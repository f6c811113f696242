"""What a checkpoint's folder holds, read and verified without TensorFlow."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from hvdgan import __version__
from hvdgan.cli.errors import RunError, UserError

FORMAT_VERSION = 1
STATE = "state.safetensors"
MANIFEST = "manifest.json"
LATEST = "latest"
_NAME = re.compile(r"step-(?P<step>\d{8,})|\.step-(?P<replaced>\d{8,})\.replaced")


class DamagedCheckpoint(RunError):
    """What is on the disk is not what was written."""


def find(path: Path) -> Path:
    """The checkpoint that a command is to use.

    Args:
        path: a run folder, whose newest checkpoint is taken, or the folder of a checkpoint.

    Raises:
        UserError: it is neither.
        RunError: it is a checkpoint without its manifest.
    """
    try:
        if (path / MANIFEST).is_file():
            return path
        if not path.exists() and (aside(path) / MANIFEST).is_file():
            return aside(path)
        if (path / STATE).is_file():
            raise RunError(f"{path} is not a whole checkpoint: it has no {MANIFEST}")
        found = newest(path / "checkpoints")
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if found is None:
        problem = "neither a run folder with a checkpoint nor a checkpoint" if exists else "no such folder"
        raise UserError(f"{path}: {problem}; expected one such as runs/dcgan or runs/dcgan/checkpoints/step-00001000")
    return found


def newest_first(folder: Path) -> list[Path]:
    """All checkpoints of RUN_DIR/checkpoints, complete or damaged, by their steps."""
    found = {}
    # Where write() was cut off while it replaced a checkpoint, or is about to, the older one has its other name.
    for path in [*folder.glob(".step-*.replaced"), *folder.glob("step-*")]:
        if _NAME.fullmatch(path.name) and path.is_dir():
            found[step_of(path)] = path
    return [found[step] for step in sorted(found, reverse=True)]


def newest(folder: Path) -> Path | None:
    """The checkpoint that RUN_DIR/checkpoints/latest names, or None where nothing has been saved.

    Where `latest` is missing or names nothing, it is the one of the highest step: a crash may fall between the rename,
    which makes a checkpoint complete, and the naming.
    """
    named = named_latest(folder)
    for path in (named, aside(named)) if named else ():
        if (path / MANIFEST).is_file():
            return path
    return next((path for path in newest_first(folder) if (path / MANIFEST).is_file()), None)


def named_latest(folder: Path) -> Path | None:
    """What RUN_DIR/checkpoints/latest names, there or not; None where there is no such file."""
    latest = folder / LATEST
    return folder / Path(latest.read_text().strip()).name if latest.is_file() else None


def aside(checkpoint: Path) -> Path:
    """The name that a checkpoint has while another of the same step takes its place."""
    return checkpoint.with_name(f".{checkpoint.name}.replaced")


def step_of(checkpoint: Path) -> int:
    """The step in the name of a checkpoint."""
    found = _NAME.fullmatch(checkpoint.name)
    assert found, f"{checkpoint} has no step in its name"
    return int(found["step"] or found["replaced"])


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
        RunError: there is none, it is unreadable, or a newer hvdgan wrote it.
    """
    path = checkpoint / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        version = manifest["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{checkpoint} is not a checkpoint: {path.name} cannot be read: {error!r}") from error
    if version != FORMAT_VERSION:
        raise RunError(f"{path}: format version {version}; this hvdgan {__version__} reads version {FORMAT_VERSION}")
    if missing := {"step", "config", "data", "tensors"} - manifest.keys():
        raise DamagedCheckpoint(f"{path} is damaged: it lacks {list_some(sorted(missing))}")
    for name in ("step", "stage_step", "samples_seen", "seed", "ranks"):
        if type(manifest.get(name, 0)) is not int:
            raise DamagedCheckpoint(f"{path} is damaged: its {name} is {manifest[name]!r}; expected a whole number")
    for name in ("config", "data", "tensors", "versions", "best"):
        absent = name in ("versions", "best") and manifest.get(name) is None
        if not absent and not isinstance(manifest[name], dict):
            raise DamagedCheckpoint(f"{path} is damaged: its {name} is {manifest[name]!r}; expected an object")
    return manifest


def damaged(checkpoint: Path, manifest: dict[str, Any]) -> list[str]:
    """The names of the tensors that are not what was written, lost or added, sorted.

    Raises:
        RunError: the file that holds them cannot be read.
    """
    recorded = dict(manifest["tensors"])
    wrong = [name for name, value in read_tensors(checkpoint) if recorded.pop(name, None) != describe(value)]
    return sorted([*wrong, *recorded])


def read_tensors(checkpoint: Path, only: tuple[str, ...] = ("",)) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of a checkpoint by name, one at a time, unverified.

    Args:
        checkpoint: its folder.
        only: the beginnings of the names to read.

    Raises:
        RunError: the file that holds them cannot be read.
    """
    path = checkpoint / STATE
    try:
        with safe_open(path, "numpy") as file:
            for name in file.keys():  # noqa: SIM118
                if name.startswith(only):
                    yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error


def describe(value: np.ndarray) -> dict[str, Any]:
    """What a manifest says of a tensor."""
    digest = hashlib.sha256(value.tobytes()).hexdigest()
    return {"shape": list(value.shape), "dtype": str(value.dtype), "sha256": digest}


def list_some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
