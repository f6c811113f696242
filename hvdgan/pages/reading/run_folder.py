"""Reads a run folder that nobody trusts: settings, metrics, evaluations, events, checkpoints, names of pictures."""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdgan.checkpoints import contents, files
from hvdgan.cli import events
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.files import lock
from hvdgan.pages.reading import journal, metrics
from hvdgan.pages.reading.metrics import is_number, is_step
from hvdgan.pages.reading.untrusted import Folder

_CHECKPOINTS = "checkpoints"
_SIGNS = ("config.json", metrics.FILE, events.FILE, _CHECKPOINTS)
_GRID = re.compile(r"step-(\d{1,15})\.png")
_MOST_CHECKPOINTS = 200
_MOST_EVALUATIONS = 500
_MOST_DAMAGED = 5
_LARGEST_MANIFEST = 1 << 26
Facts = dict[str, Any]


@dataclasses.dataclass
class SavedCheckpoint:
    """A checkpoint on the disk.

    Args:
        name: name of its folder.
        step: number of steps done.
        facts: contents of its manifest, as contents() returns them; None if it cannot be read.
        problem: reason for that.
        bytes: size of its files.
        verified: True or False if it was verified; None if it was not.
        damage: damaged parts, if it was verified and has some.
    """

    name: str
    step: int
    facts: Facts | None
    problem: str = ""
    bytes: int = 0
    verified: bool | None = None
    damage: str = ""

    @property
    def is_readable(self) -> bool:
        """Whether a run can be resumed from it, as far as is known."""
        return self.facts is not None and self.verified is not False


@dataclasses.dataclass
class RunFacts:
    """What a run folder holds.

    Args:
        folder: folder, with remarks about what could not be read.
        config: settings; None if config.json is missing or damaged.
        metrics: curves.
        journal: facts of events.jsonl.
        evaluations: latest records of evaluation.jsonl.
        checkpoints: checkpoints, the newest first.
        grids: step and name of each grid of samples.
        holder: process that holds the lock of the folder; empty if none does; None if its file system has no locks.
        other_host: host whose process was the last to lock the folder, if it is not this one; its lock may not be seen
            here.
        is_locked_anew: True if the lock was taken after the last event.
        is_copy: True if nobody holds its lock as far as can be seen, and its lock file is missing, or names a process
            of this host that is running: then the folder is a copy.
        evaluations_left_out: number of earlier records of evaluation.jsonl.
    """

    folder: Folder
    config: Facts | None
    metrics: metrics.Metrics
    journal: journal.Journal
    evaluations: list[Facts]
    checkpoints: list[SavedCheckpoint]
    grids: list[tuple[int, str]]
    holder: str | None
    other_host: str
    is_locked_anew: bool
    is_copy: bool
    evaluations_left_out: int

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.folder.path.resolve().name

    @property
    def newest(self) -> Facts:
        """Facts of the newest checkpoint that can be read; empty if there is none."""
        return next((each.facts for each in self.checkpoints if each.facts), {})

    def setting(self, name: str, kind: type) -> Any:
        """Return a setting if it has the kind, and is no number too large to count with; None if not."""
        value = (self.config or {}).get(name)
        is_countable = type(value) is not int or abs(value) < 1 << 53
        return value if type(value) is kind and is_countable else None

    @property
    def images_per_sec(self) -> float | None:
        """Mean of the images per second, without the records in which graphs are traced; None if unknown."""
        seconds, batch = self.metrics.steady("step_seconds"), self.setting("global_batch_size", int)
        return batch / seconds if seconds and batch else None

    @property
    def best(self) -> tuple[str, str, float, int] | None:
        """Name, mode, value and step of the best metric, as the newest checkpoint says."""
        best = self.newest.get("best") or {}
        name, mode, value, step = (best.get(key) for key in ("metric", "mode", "value", "step"))
        if isinstance(name, str) and isinstance(mode, str) and is_number(value) and is_step(step):
            return name, mode, float(value), step
        return None


def is_run(path: Path) -> bool:
    """Check whether a path looks like a run folder."""
    try:
        return path.is_dir() and any((path / sign).exists() for sign in _SIGNS)
    except OSError:
        return False


def expand(path: Path) -> list[Path]:
    """Return the run folder itself, or the run folders inside it and inside its subfolders.

    A folder that holds runs may have a config.json of its own, by accident: without metrics and checkpoints
    it counts as a folder of runs.

    Raises:
        UserError: it is neither a run folder nor a folder of runs.
    """
    is_own = is_run(path)
    if is_own and _has_begun(path):
        return [path]
    try:
        inside = list(_runs_inside(path, 2))
    except OSError as error:
        raise UserError(
            f"{error.filename or path}: {error.strerror}; expected a run folder such as runs/dcgan, or a folder of them"
        ) from error
    if not inside and not is_own:
        raise UserError(
            f"{path}: neither a run folder nor a folder of runs; expected one with config.json, {metrics.FILE} or "
            "checkpoints in it, such as runs/dcgan"
        )
    return inside or [path]


def _runs_inside(path: Path, levels: int) -> Iterator[Path]:
    for each in sorted(path.iterdir()):
        if is_run(each):
            yield each
        elif levels > 1 and each.is_dir() and not each.is_symlink():
            yield from _runs_inside(each, levels - 1)


def _has_begun(path: Path) -> bool:
    return any((path / sign).exists() for sign in (metrics.FILE, _CHECKPOINTS))


def read(path: Path, *, verify: bool) -> RunFacts:
    """Read a run folder; what cannot be read is named in the remarks of its folder.

    Args:
        path: run folder.
        verify: True to read all tensors of all checkpoints, and compare them with what was written.
    """
    folder = Folder(path)
    # Before the events: a run that ends meanwhile has written its last one before its lock is released.
    has_lock = folder.find(".lock") is not None
    holder = lock.held_by(path) if has_lock else ""
    is_locked_anew = has_lock and _modified(path / ".lock") > _modified(path / events.FILE)
    log = journal.read(folder)
    measured, (evaluations, left_out) = metrics.read(folder, log.resumptions), _evaluations(folder)
    metrics.add_evaluations(measured, evaluations)
    return RunFacts(
        folder=folder,
        config=folder.json_object("config.json"),
        metrics=measured,
        journal=log,
        evaluations=evaluations,
        checkpoints=_checkpoints(folder, verify=verify),
        grids=_grids(folder),
        holder=holder,
        other_host=lock.other_host(path) if has_lock else "",
        is_locked_anew=is_locked_anew,
        is_copy=holder == "" and not (has_lock and lock.is_of_dead_process(path)),
        evaluations_left_out=left_out,
    )


def _modified(path: Path) -> int:
    """Return the time at which a file was written last (ns); 0 if there is no such file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _evaluations(folder: Folder) -> tuple[list[Facts], int]:
    """Return the latest records of evaluation.jsonl, and the number of the earlier ones."""
    found: collections.deque[Facts] = collections.deque(maxlen=_MOST_EVALUATIONS)
    count = 0
    for record in itertools.chain.from_iterable(folder.records("evaluation.jsonl")):
        if is_step(record.get("step")):
            found.append(record)
            count += 1
    return list(found), count - len(found)


def _grids(folder: Folder) -> list[tuple[int, str]]:
    return sorted((int(match[1]), name) for name in folder.names("samples") if (match := _GRID.fullmatch(name)))


def _checkpoints(folder: Folder, *, verify: bool) -> list[SavedCheckpoint]:
    if not folder.names("checkpoints"):
        return []
    found = files.newest_first(folder.path / "checkpoints")
    if len(found) > _MOST_CHECKPOINTS:
        folder.remarks.append(f"checkpoints: the newest {_MOST_CHECKPOINTS} of {len(found):,} are shown")
    return [_saved(folder, path, verify=verify) for path in found[:_MOST_CHECKPOINTS]]


def _saved(folder: Folder, path: Path, *, verify: bool) -> SavedCheckpoint:
    name = f"checkpoints/{path.name}"
    saved = SavedCheckpoint(path.name, files.step_of(path), None)
    inside = [folder.find(f"{name}/{file}") for file in (files.MANIFEST, files.STATE)]
    if None in inside:
        saved.problem = "not whole: a file is missing or leads out of the folder"
        return saved
    try:
        if (size := (path / files.MANIFEST).stat().st_size) > _LARGEST_MANIFEST:
            saved.problem = f"its manifest has {size:,} bytes, which is too large"
            return saved
        saved.facts = {**contents.contents(path), "stages": _stages(path)}
        saved.bytes = saved.facts["bytes"]
        if verify:
            found = contents.verified(path)
            saved.verified, saved.damage = found["verified"], _damage(found)
    except (RunError, OSError, ValueError, RecursionError, MemoryError) as error:
        saved.problem = str(error)
    return saved


def _damage(found: Facts) -> str:
    """Say what is wrong with a checkpoint, from what contents.verified() returns; empty if nothing is."""
    names = [f"tensor {name}" for name in found["damaged"]]
    more = [f"{len(names) - _MOST_DAMAGED} more"] if len(names) > _MOST_DAMAGED else []
    return found["problem"] or ", ".join([*names[:_MOST_DAMAGED], *more])


def _stages(path: Path) -> list[tuple[str, int]]:
    """Return name and steps of the stages of a checkpoint's schedule; those that have ended early have fewer steps."""
    manifest = files.read_manifest(path)
    stages, progress = manifest.get("stages"), manifest.get("progress")
    pairs = stages if isinstance(stages, list) else []
    found = progress.get("ended") if isinstance(progress, dict) else None
    ended = found if isinstance(found, dict) else {}
    return [
        (pair[0], steps if is_step(steps := ended.get(str(index))) else pair[1])
        for index, pair in enumerate(pairs)
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and is_step(pair[1])
    ]
