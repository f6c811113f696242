"""Checkpoints on the disk, without TensorFlow: files step-<step>.safetensors, whose header has the manifest."""

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hvdgan import __version__
from hvdgan.checkpoints.tensor_names import OF_NETWORKS, kind_of, named_of_ranks, of_one, of_ranks
from hvdgan.errors import RunError, UserError, in_one_line, list_some, unwritable
from hvdgan.files.replacing import flush, whole_file
from hvdgan.launching.launched import launched

if TYPE_CHECKING:
    import keras

FORMAT_VERSION = 1
EXAMPLE = "runs/dcgan/checkpoints/step-00001000.safetensors"
"""a checkpoint's path, for messages"""
_SUFFIX = ".safetensors"
_MOST_HEADER = 1 << 24
"""bytes of a header, at most: some 40,000 tensors; a longer one would take much memory to read"""
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("step", "stage_index", "stage_step", "samples_seen", "seed", "ranks"), int),
    **dict.fromkeys(("config", "tensors", "versions", "code", "frozen"), dict),
    **{"run_id": str, "stage": str, "stages": [list]},
    "data": {
        **{"source": str, "fingerprint": str, "num_images": int},
        "spec": {"shape": [int], "num_classes": int, "class_names": [str], "domains": dict, "values": dict | None},
    },
    "progress": {"ended": dict, "bad_files": dict, "bad_updates": dict, "ranks": [dict]},
}
"""fields of every manifest, and their types; [type] is a list of these"""
_NAME = re.compile(rf"step-(\d{{8,}}){re.escape(_SUFFIX)}")


class DamagedCheckpoint(RunError):
    """A checkpoint cannot be read, or differs from what was written; `what` is the message without the cure."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; copy it anew, or use another checkpoint")
        self.what = what


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
    """Write RUN_DIR/checkpoints/step-<step>.safetensors, then its name to `latest`; only rank 0 may call this.

    A crash at any moment leaves the older checkpoints as they were, also one of the same step: the file gets its name
    when all of it is on the disk.
    """
    target = folder / f"step-{snapshot.step:08d}{_SUFFIX}"
    # save_file writes the bytes of an array that is not contiguous in another order than its shape says.
    values = {name: np.asarray(value, order="C") for name, value in snapshot.values.items()}
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": snapshot.step,
        **snapshot.facts,
        "tensors": {name: describe(value) for name, value in values.items()},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(target, lasting=True) as partial:
            partial.touch()
            mode = partial.stat().st_mode & 0o777
            save_file(values, partial, {"manifest": json.dumps(manifest)})
            with contextlib.suppress(OSError):  # a file system without modes
                partial.chmod(mode)  # save_file makes the file readable by its owner only, whatever the umask is
            _header(partial)  # what nobody could read is not written
        flush(folder)
        with whole_file(folder / "latest", lasting=True) as latest:
            latest.write_text(target.name + "\n")
        flush(folder)
    except (OSError, SafetensorError) as error:
        raise unwritable(f"checkpoint {target}", error) from error
    return target


def remove_partial(folder: Path) -> None:
    """Remove what writes that were killed have left in RUN_DIR/checkpoints; the caller holds the run's lock."""
    for path in (*folder.glob(".step-*"), *folder.glob(".tmp*")):  # the latter are save_file's
        path.unlink()


def prune(folder: Path, newest: Snapshot, keep: int) -> list[str]:
    """Delete old checkpoints of the run of the `newest` one; returns a message for each that cannot be deleted.

    The `keep` newest stay (0: all), the best and the last of each stage, and those of another run.
    """
    if not keep:
        return []
    mine = {}
    for path in reversed(newest_first(folder)):
        try:
            manifest = read_manifest(path)
        except RunError:
            continue  # it may be of another run
        if manifest["run_id"] == newest.facts["run_id"]:
            mine[manifest["step"]] = path, manifest["stage_index"]
    last_of_stages = {stage: step for step, (_, stage) in mine.items()}
    best = newest.facts.get("best") or {}
    stay = {*list(mine)[-keep:], *last_of_stages.values(), best.get("step")}
    failures = []
    for step, (path, _) in mine.items():
        if step not in stay and step < newest.step:
            try:
                path.unlink()
            except OSError as error:
                failures.append(f"old checkpoint {path} cannot be removed: {error}; the next save tries again")
    return failures


def find(path: Path) -> Path:
    """Find the checkpoint that a command line names: itself, or the newest of a run folder; else a UserError."""
    try:
        found = path if is_checkpoint(path) else newest(path / "checkpoints")
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if found is None:
        problem = "neither a run folder with a checkpoint nor a checkpoint" if exists else "no such file or folder"
        raise UserError(f"{path}: {problem}; expected one such as runs/dcgan or {EXAMPLE}")
    return found


def is_checkpoint(path: Path) -> bool:
    """Check that a file has the name of a checkpoint, whole or damaged."""
    return path.suffix == _SUFFIX and path.is_file()


def refuse_missing(run_dir: Path, request: Any) -> None:
    """Refuse a run folder or checkpoint that is not there, unless --watch waits for it, or ranks look for it later."""
    if launched()[1] == 1 and not getattr(request, "watch", False):
        find(run_dir)


def newest_first(folder: Path) -> list[Path]:
    """List all checkpoints in RUN_DIR/checkpoints, whole or damaged, highest step first."""
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and path.is_file()]
    return sorted(found, key=step_of, reverse=True)


def newest(folder: Path) -> Path | None:
    """Find the checkpoint with the highest step in RUN_DIR/checkpoints; None if there is none.

    `latest` is for people and other programs: a crash can fall between the rename that completes a checkpoint and the
    update of `latest`.
    """
    return next(iter(newest_first(folder)), None)


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    found = _NAME.fullmatch(checkpoint.name)
    assert found, f"{checkpoint} has no step in its name"
    return int(found[1])


def _header(checkpoint: Path) -> Any:
    """Return the header of a safetensors file: its length in 8 bytes, then JSON. A ValueError says that it is none."""
    with checkpoint.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > _MOST_HEADER:
            raise ValueError(f"it has {size:,} bytes, and {_MOST_HEADER:,} are the most")
        return json.loads(file.read(size))


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """Read a checkpoint's manifest, unless it is missing, damaged or of a newer hvdgan, and check its fields."""
    try:
        manifest = json.loads(_header(checkpoint)["__metadata__"]["manifest"])
        version = manifest["format_version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = "it has no manifest" if isinstance(error, KeyError | TypeError) else in_one_line(error)
        raise DamagedCheckpoint(f"{checkpoint} is not a checkpoint: its header cannot be read: {why}") from error
    if version != FORMAT_VERSION:
        reads = f"this hvdgan {__version__} reads version {FORMAT_VERSION}"
        raise RunError(f"{checkpoint}: format version {version!r:.20}; {reads}")
    wrong = list(_wrong(manifest, _FIELDS))
    if "tensors" not in wrong and not all(map(_is_described, manifest["tensors"].values())):
        wrong.append("tensors")
    if wrong:
        what = "missing in its manifest or of another type"
        raise DamagedCheckpoint(f"{checkpoint} is damaged: {what}: {list_some(wrong)}")
    return manifest


def _wrong(value: Any, kind: Any, name: str = "") -> Iterator[str]:
    """Yield the names of fields that are missing or of another type than a type, [type] or {field: type}."""
    if isinstance(kind, dict) and isinstance(value, dict):
        for field, each in kind.items():
            yield from _wrong(value.get(field), each, f"{name}/{field}".removeprefix("/"))
    elif isinstance(kind, list) and isinstance(value, list):
        yield from dict.fromkeys(wrong for each in value for wrong in _wrong(each, kind[0], name))
    elif isinstance(kind, dict | list) or not isinstance(value, kind):
        yield name


def _is_described(tensor: Any) -> bool:
    if not isinstance(tensor, dict) or not isinstance(tensor.get("shape"), list):
        return False
    return isinstance(tensor.get("dtype"), str) and all(type(size) is int and size >= 0 for size in tensor["shape"])


def read(checkpoint: Path, only: tuple[str, ...] = ("",), manifest: dict[str, Any] | None = None) -> Snapshot:
    """Read a checkpoint and verify its tensors among `only` (see is_among), those of one rank and those of all."""
    manifest = manifest or read_manifest(checkpoint)
    only = (*only, *named_of_ranks(dict.fromkeys(only)))
    values = dict(read_tensors(checkpoint, only))
    recorded = {name: facts for name, facts in manifest["tensors"].items() if is_among(name, only)}
    names = sorted({**recorded, **values})
    if wrong := [name for name in names if name not in values or describe(values[name]) != recorded.get(name)]:
        raise DamagedCheckpoint(f"{checkpoint} is damaged: {list_some(wrong)} differs from what was written")
    return Snapshot(manifest["step"], {name: values[name] for name in recorded}, manifest)


def assign(tensors: "Mapping[str, keras.Variable]", values: Mapping[str, np.ndarray], checkpoint: Path) -> None:
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
    try:
        with safe_open(checkpoint, "numpy") as file:
            for name in file.keys():  # noqa: SIM118
                if is_among(name, only):
                    yield name, file.get_tensor(name)
    except (OSError, SafetensorError, TypeError) as error:  # TypeError: of a type that NumPy does not have
        raise DamagedCheckpoint(f"{checkpoint} cannot be read: {error}") from error


def describe(value: np.ndarray) -> dict[str, Any]:
    """Return the manifest entry of a tensor: shape, dtype and SHA-256."""
    digest = hashlib.sha256(value.tobytes()).hexdigest()
    return {"shape": list(value.shape), "dtype": str(value.dtype), "sha256": digest}
