"""Reads a whole run folder: settings, metrics, evaluations, events, checkpoints, names of pictures."""

import dataclasses
import re
from pathlib import Path
from typing import Any

from hvdgan.checkpoints import files
from hvdgan.errors import UserError
from hvdgan.files import lock
from hvdgan.runs import evaluation_log, events, metrics
from hvdgan.runs.folder import Facts, Folder
from hvdgan.runs.metrics import mode_of
from hvdgan.settings.evaluation import PLAIN_MEASURE

_BEGUN = (metrics.FILE, "checkpoints")
_SIGNS = ("config.json", events.FILE, *_BEGUN)
_GRID = re.compile(r"step-(\d+)\.png")


@dataclasses.dataclass
class RunFacts:
    """What a run folder holds."""

    folder: Folder
    config: Facts  # settings; empty if config.json is missing or damaged
    metrics: metrics.Metrics
    journal: events.Journal
    checkpoints: list[tuple[int, int]]  # step and bytes, the newest first; 0 bytes: it cannot be read
    grids: list[tuple[int, str]]  # step and name of the file
    holder: str | None  # process that holds the lock; empty if none does; None if the file system has no locks
    may_be_held_elsewhere: bool  # a process that no lock shows may write into it, or into the folder that it copies
    is_locked_anew: bool  # the lock was taken after the last event

    def setting(self, name: str, kind: type) -> Any:
        """Return a setting if it has the kind; None if not."""
        value = self.config.get(name)
        return value if type(value) is kind else None

    @property
    def newest(self) -> int | None:
        """Step of the newest checkpoint; None if there is none."""
        return next((step for step, size in self.checkpoints if size), None)

    @property
    def done(self) -> int:
        """Number of steps done, as far as the folder shows."""
        return max(self.metrics.last_step, *(step for step, _ in self.checkpoints), 0)

    @property
    def images_per_sec(self) -> float | None:
        """Mean of the images per second, without the records in which graphs are traced; None if unknown."""
        seconds, batch = self.metrics.steady("step_seconds"), self.setting("global_batch_size", int)
        return batch / seconds if seconds and batch else None

    @property
    def best(self) -> tuple[str, int, float] | None:
        """Name, step and value of --best-metric; None if there is none yet."""
        is_plain = self.setting("eval_features", str) == "none"
        name = self.setting("best_metric", str) or (PLAIN_MEASURE if is_plain else "")
        series = self.metrics.series.get(name)
        mode = self.setting("best_mode", str) or mode_of(name)
        return (name, *series.best(mode)) if series and series.count else None


def expand(path: Path) -> list[Path]:
    """Return the run folder itself, or the run folders inside it and inside its subfolders.

    A folder that holds runs may have a config.json of its own, by accident: without metrics and checkpoints it counts
    as a folder of runs. A UserError says that it is neither.
    """
    try:
        if _has(path, _BEGUN):
            return [path]
        below = [each for levels in ("*", "*/*") for each in path.glob(levels) if each.is_dir() and _has(each, _SIGNS)]
        if below or _has(path, _SIGNS):
            return sorted(below) or [path]
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}; expected a run folder such as runs/dcgan, or a folder of them"
        ) from error
    raise UserError(
        f"{path}: neither a run folder nor a folder of runs; expected one with config.json, {metrics.FILE} or "
        "checkpoints in it, such as runs/dcgan"
    )


def _has(path: Path, signs: tuple[str, ...]) -> bool:
    return any((path / sign).exists() for sign in signs)


def read(path: Path) -> RunFacts:
    """Read a run folder; what cannot be read is named in the remarks of its folder."""
    folder = Folder(path)
    # Before the events: a run that ends meanwhile has written its last one before its lock is released.
    has_lock = folder.find(".lock") is not None
    holder = lock.held_by(path) if has_lock else ""
    is_locked_anew = has_lock and _modified(path / ".lock") > _modified(path / events.FILE)
    journal = events.read(folder)
    measured = metrics.read(folder, journal.resumptions)
    measured.add_evaluations(list(evaluation_log.read(folder)))
    saved = files.newest_first(path / "checkpoints") if folder.names("checkpoints") else []
    grids = [(int(match[1]), name) for name in folder.names("samples") if (match := _GRID.fullmatch(name))]
    return RunFacts(
        folder=folder,
        config=folder.json_object("config.json"),
        metrics=measured,
        journal=journal,
        checkpoints=[(files.step_of(each), _size(folder, f"checkpoints/{each.name}")) for each in saved],
        grids=sorted(grids),
        holder=holder,
        may_be_held_elsewhere=holder == "" and (not has_lock or lock.may_be_held_elsewhere(path)),
        is_locked_anew=is_locked_anew,
    )


def _modified(path: Path) -> int:
    """Return the time at which a file was written last (ns); 0 if there is no such file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _size(folder: Folder, name: str) -> int:
    """Return the bytes of a checkpoint; 0 if it cannot be read."""
    path = folder.find(name)
    return path.stat().st_size if path else 0
