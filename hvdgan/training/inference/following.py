"""Finds the checkpoints of a run to evaluate, and follows a run that is still being trained."""

import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from hvdgan.checkpoints.files import MANIFEST, find, newest_first, read_manifest
from hvdgan.cli.errors import RunError
from hvdgan.cli.shared_errors import from_root
from hvdgan.distributed.ranks import Ranks

_POLL_SECONDS = 2.0


def checkpoints_of(path: Path, ranks: Ranks, *, every: bool) -> tuple[Path | None, list[Path]]:
    """The run folder of a path, and the checkpoints to evaluate, the oldest first; every rank calls this.

    Args:
        path: run folder, or folder of a checkpoint.
        ranks: the ranks; rank 0 looks.
        every: True for all checkpoints of a run folder, False for the newest.

    Returns:
        The run folder, or None for a checkpoint that lies outside of one; and the checkpoints.

    Raises:
        UserError: the path is neither.
    """

    def look() -> list[list[str]]:
        found = find(path)
        inside = found.parent.name == "checkpoints"
        of_run = [str(found.parent.parent)] if inside else []
        all_of_them = [str(each) for each in _complete(path)] if every else []
        return [of_run, all_of_them or [str(found)]]

    of_run, checkpoints = from_root(look, ranks, "the checkpoints")
    return (Path(of_run[0]) if of_run else None), [Path(each) for each in checkpoints]


def follow(
    run_dir: Path,
    is_done: Callable[[Path], bool],
    failed: Collection[Path],
    ranks: Ranks,
    say: Callable[[str], None],
) -> Iterator[Path]:
    """Yield each checkpoint of a run that is not evaluated, also new ones, until that of the last step is.

    Every rank iterates; rank 0 looks.

    Args:
        run_dir: run folder.
        is_done: function that checks whether a checkpoint is evaluated.
        failed: checkpoints that cannot be evaluated; the caller adds to them.
        ranks: the ranks.
        say: function that logs a line.
    """
    before, waiting = "", None

    def look() -> str | None:
        """The next checkpoint; an empty string if there is none yet, None if there will be none."""
        complete = _complete(run_dir)
        pending = (each for each in complete if each not in failed and not _safely(is_done, each))
        if (first := next(pending, None)) is not None:
            return str(first)
        return None if complete and _is_last(complete[-1]) else ""

    while (chosen := from_root(look, ranks, "new checkpoints")) is not None:
        if chosen and chosen != before:
            yield Path(chosen)
        else:  # nothing new, or another process evaluates it
            if waiting != chosen:
                say(f"{run_dir}: waiting for {'the evaluation of ' + str(chosen) if chosen else 'the next checkpoint'}")
            waiting = chosen
            time.sleep(_POLL_SECONDS)
        before = "" if before == chosen else chosen


def _complete(run_dir: Path) -> list[Path]:
    """The complete checkpoints of a run folder, the oldest first."""
    return [each for each in reversed(newest_first(run_dir / "checkpoints")) if (each / MANIFEST).is_file()]


def _safely(is_done: Callable[[Path], bool], checkpoint: Path) -> bool:
    """Whether a checkpoint is done, or is gone: training deletes old ones."""
    try:
        return is_done(checkpoint)
    except RunError:
        return True


def _is_last(checkpoint: Path) -> bool:
    """Whether a checkpoint is that of the last step of its run."""
    try:
        manifest = read_manifest(checkpoint)
        ended = (manifest.get("progress") or {}).get("ended", {})
        total = sum(ended.get(str(number), steps) for number, (_, steps) in enumerate(manifest["stages"]))
    except (RunError, KeyError, TypeError, ValueError):
        return False
    most = manifest["config"].get("max_steps")
    return bool(manifest["step"] >= (total if most is None else min(most, total)))
