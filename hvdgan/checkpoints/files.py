"""Finds, reads and verifies checkpoints on the disk, without TensorFlow."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from hvdgan import __version__
from hvdgan.errors import RunError, UserError
from hvdgan.launching.launched import launched

FORMAT_VERSION = 1
STATE = "state.safetensors"
MANIFEST = "manifest.json"
LATEST = "latest"
_FIELDS = {
    **dict.fromkeys(("step", "stage_index", "stage_step", "samples_seen", "seed", "ranks"), int),
    **dict.fromkeys(("config", "data", "tensors", "versions", "code", "frozen", "progress"), dict),
    **{"run_id": str, "stage": str, "stages": list},
}
"""fields of every manifest, and their types"""
_OF_DATA = {"source": str, "fingerprint": str, "num_images": int, "spec": dict}
"""the same of its field `data`"""
_NAME = re.compile(r"step-(?P<step>\d{8,})|\.step-(?P<replaced>\d{8,})\.replaced")


class DamagedCheckpoint(RunError):
    """A file of a checkpoint is missing, unreadable, or differs from what was written."""


def find(path: Path) -> Path:
    """Find the checkpoint that a command line names: itself, or the newest of a run folder.

    Raises:
        UserError: the path is neither.
        RunError: the path is a checkpoint without a manifest.
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


def refuse_missing(run_dir: Path, request: Any) -> None:
    """Refuse a run folder or checkpoint that is not there, unless --watch waits for it, or ranks look for it later."""
    if launched()[1] == 1 and not getattr(request, "watch", False):
        find(run_dir)


def newest_first(folder: Path) -> list[Path]:
    """List all checkpoints in RUN_DIR/checkpoints, complete or damaged, highest step first."""
    found = {}
    # While a checkpoint is being replaced, and after a crash in between, the older one has the name of aside().
    for path in [*folder.glob(".step-*.replaced"), *folder.glob("step-*")]:
        if _NAME.fullmatch(path.name) and path.is_dir():
            found[step_of(path)] = path
    return [found[step] for step in sorted(found, reverse=True)]


def newest(folder: Path) -> Path | None:
    """Find the complete checkpoint with the highest step in RUN_DIR/checkpoints; None if there is none.

    `latest` is for people and other programs: a crash can fall between the rename that completes a checkpoint and the
    update of `latest`.
    """
    return next((path for path in newest_first(folder) if (path / MANIFEST).is_file()), None)


def aside(checkpoint: Path) -> Path:
    """Return the name that a checkpoint has while another of the same step replaces it."""
    return checkpoint.with_name(f".{checkpoint.name}.replaced")


def is_gone(checkpoint: Path) -> bool:
    """Check that a checkpoint which was complete is no longer there, because training has deleted it."""
    try:
        return not any((each / MANIFEST).is_file() for each in (checkpoint, aside(checkpoint)))
    except OSError:  # it may be there
        return False


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    found = _NAME.fullmatch(checkpoint.name)
    assert found, f"{checkpoint} has no step in its name"
    return int(found["step"] or found["replaced"])


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """Read a checkpoint's manifest and check its fields.

    Raises:
        RunError: the manifest is missing, damaged, or in the format of a newer hvdgan.
    """
    path = checkpoint / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        version = manifest["format_version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{checkpoint} is not a checkpoint: {path.name} cannot be read: {error!r}") from error
    if version != FORMAT_VERSION:
        raise RunError(f"{path}: format version {version}; this hvdgan {__version__} reads version {FORMAT_VERSION}")
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(manifest.get(name), kind)]
    if "data" not in wrong:
        wrong += [f"data/{name}" for name, kind in _OF_DATA.items() if not isinstance(manifest["data"].get(name), kind)]
    tensors = manifest["tensors"].values() if "tensors" not in wrong else ()
    if not all(isinstance(each, dict) and {"shape", "dtype"} <= each.keys() for each in tensors):
        wrong.append("tensors")
    if wrong:
        raise DamagedCheckpoint(f"{path} is damaged: missing or of another type: {list_some(wrong)}")
    return manifest


def damaged(checkpoint: Path, manifest: dict[str, Any]) -> list[str]:
    """List the tensors that are missing, unknown, or differ from what was written, sorted by name."""
    recorded = dict(manifest["tensors"])
    wrong = [name for name, value in read_tensors(checkpoint) if recorded.pop(name, None) != describe(value)]
    return sorted([*wrong, *recorded])


def is_among(name: str, only: tuple[str, ...]) -> bool:
    """Check that a tensor's name is one of `only`, or lies below one that ends with a slash; "" stands for all."""
    return name in only or name.startswith(tuple(each for each in only if each[-1:] in ("", "/")))


def read_tensors(checkpoint: Path, only: tuple[str, ...] = ("",)) -> Iterator[tuple[str, np.ndarray]]:
    """Read the tensors of which is_among() is true one at a time, without verifying them."""
    path = checkpoint / STATE
    try:
        with safe_open(path, "numpy") as file:
            for name in file.keys():  # noqa: SIM118
                if is_among(name, only):
                    yield name, file.get_tensor(name)
    except (OSError, SafetensorError, TypeError) as error:  # TypeError: of a type that NumPy does not have
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error


def describe(value: np.ndarray) -> dict[str, Any]:
    """Return the manifest entry of a tensor: shape, dtype and SHA-256."""
    digest = hashlib.sha256(value.tobytes()).hexdigest()
    return {"shape": list(value.shape), "dtype": str(value.dtype), "sha256": digest}


def list_some(names: list[str], most: int = 5) -> str:
    """Join the first names, and count the rest."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
