"""Finds the checkpoints of a run to evaluate, and follows a run that is still being trained."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from hvdgan.checkpoints.files import MANIFEST, STATE, find, is_gone, newest_first, read_manifest, step_of
from hvdgan.cli.errors import RunError, UserError
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
        if found.parent.name != "checkpoints":  # as of . and ../step-00001000
            found = Path(os.path.abspath(found))
        of_run = [str(found.parent.parent)] if found.parent.name == "checkpoints" else []
        all_of_them = [str(each) for each in _complete(path)] if every else []
        return [of_run, all_of_them or [str(found)]]

    of_run, checkpoints = from_root(look, ranks, "the checkpoints")
    return (Path(of_run[0]) if of_run else None), [Path(each) for each in checkpoints]


def refuse_checkpoint(path: Path, ranks: Ranks) -> None:
    """Refuse to follow what gets no new checkpoints; a run folder may not be there yet. Every rank calls this.

    Args:
        path: path that the command names.
        ranks: the ranks; rank 0 looks.

    Raises:
        UserError: the path is a checkpoint, a folder of checkpoints, or a file, or cannot be read.
    """

    def look() -> None:
        try:
            found = "a file" if path.is_file() else ""
            if any((path / name).is_file() for name in (MANIFEST, STATE)):
                found = "a checkpoint"
            elif newest_first(path):
                found = "a folder of checkpoints"
        except (OSError, ValueError) as error:
            raise UserError(f"--watch: {path} cannot be read: {error}") from error
        if found:
            whole = path.absolute()
            run_dir = next((each.parent for each in (whole, whole.parent) if each.name == "checkpoints"), "runs/dcgan")
            raise UserError(f"--watch: {path} is {found}; expected a run folder, such as {run_dir}; name that one")

    from_root(look, ranks, "the run folder")


class Claims(Protocol):
    """What is known of a run's evaluations; `hvdgan.inference.evaluating.Evaluating` knows it."""

    def is_done(self, checkpoint: Path) -> bool:
        """Whether a checkpoint is evaluated."""

    def is_claimed(self, checkpoint: Path) -> bool:
        """Whether another process evaluates a checkpoint."""


def follow(
    run_dir: Path,
    claims: Claims,
    failed: Collection[Path],
    ranks: Ranks,
    say: Callable[[str], None],
) -> Iterator[Path]:
    """Yield each checkpoint of a run that is not evaluated, also new ones, until that of the last step is.

    A checkpoint that another process evaluates is passed over as long as that process lives. Every rank iterates; rank
    0 looks.

    Args:
        run_dir: run folder.
        claims: evaluations that are done, and those that other processes have claimed.
        failed: checkpoints that cannot be evaluated; the caller adds to them.
        ranks: the ranks.
        say: function that logs a line.
    """
    before, waiting = "", None

    def look() -> tuple[str, bool] | None:
        """The next checkpoint, or an empty string, and whether another process has it; None if there will be none."""
        complete, claimed = _complete(run_dir), ""
        for each in complete:
            if each in failed or _safely(claims.is_done, each):
                continue
            if not _safely(claims.is_claimed, each):
                return str(each), False
            claimed = claimed or str(each)
        return None if not claimed and complete and _has_last(complete) else (claimed, bool(claimed))

    while (found := from_root(look, ranks, "new checkpoints")) is not None:
        chosen, is_claimed = found
        if chosen and not is_claimed and chosen != before:
            before = chosen
            yield Path(chosen)
        else:  # nothing new, or another process evaluates it
            if waiting != chosen:
                say(f"{run_dir}: waiting for {'the evaluation of ' + chosen if chosen else 'the next checkpoint'}")
            before, waiting = "", chosen
            time.sleep(_POLL_SECONDS)


def _complete(run_dir: Path) -> list[Path]:
    """The complete checkpoints of a run folder, the oldest first."""
    return [each for each in reversed(newest_first(run_dir / "checkpoints")) if (each / MANIFEST).is_file()]


def _safely(check: Callable[[Path], bool], checkpoint: Path) -> bool:
    """Whether a checkpoint is done or claimed, or is gone; one that is damaged is neither, so that it is named."""
    try:
        return check(checkpoint)
    except RunError:
        return is_gone(checkpoint)


def _has_last(complete: Sequence[Path]) -> bool:
    """Whether the newest of a run's checkpoints is that of its last step, as the newest sound manifest says."""
    for checkpoint in reversed(complete):
        try:
            manifest = read_manifest(checkpoint)
            ended = (manifest.get("progress") or {}).get("ended", {})
            total = sum(ended.get(str(number), steps) for number, (_, steps) in enumerate(manifest["stages"]))
        except (RunError, KeyError, TypeError, ValueError):
            continue
        most = manifest["config"].get("max_steps")
        return bool(step_of(complete[-1]) >= (total if most is None else min(most, total)))
    return False
