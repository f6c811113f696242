"""How a run stands: finished, running, stopped or failed, for what reason, and which command resumes it."""

import dataclasses
import shlex
from typing import Literal

from hvdgan.pages.reading.run_folder import RunFacts

# What starts ranks on one host, and on several, whose names and slots the events do not have.
_MPIRUN = "launch/mpirun.sh -H HOSTS -np {ranks} {flags}"
_SBATCH = "launch/multi_node.sh -np {ranks} {flags}  # in an allocation; or submit the same job again (sbatch)"
_LAUNCHERS = {
    "horovodrun": (
        "horovodrun -np {ranks} python -m hvdgan.train {flags}",
        "launch/multi_node.sh -H HOSTS -np {ranks} {flags}",
    ),
    "mpirun": ("mpirun -np {ranks} python -m hvdgan.train {flags}", _MPIRUN),
    "mpiexec": ("launch/mpirun.sh -np {ranks} {flags}", _MPIRUN),
    "srun": (_SBATCH, _SBATCH),
}

_ELASTIC = "launch/elastic.sh -H HOSTS {flags}"

State = Literal["finished", "running", "stopped", "failed", "unknown"]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How a run stands.

    Args:
        state: one word.
        sentence: word and step, for a person.
        reason: reason as the events have it; empty if there is none.
        resume: command that resumes the run, with HOSTS to fill in; empty if it is running, if nothing is left to do or
            saved, or if its launcher is unknown.
        instead: sentence about what can be done if nothing is saved; else empty.
        history: starts, resumptions, lost ranks and skipped updates, in words.
    """

    state: State
    sentence: str
    reason: str
    resume: str
    instead: str
    history: list[str]


def judge(run: RunFacts) -> Verdict:
    """Judge a run by its lock, its events and its checkpoints."""
    state = _state(run)
    return Verdict(
        state, _sentence(run, state), _reason(run, state), _resume(run, state), _instead(run, state), _history(run)
    )


def end_of(run: RunFacts) -> int | None:
    """Return the step at which the run ends: that of --max-steps, or the end of the last stage; None: unknown."""
    stages: list[tuple[str, int]] = run.newest.get("stages", [])
    total = sum(steps for _, steps in stages)
    if not total:
        total = sum(stage.steps for stage in run.journal.stages)
    most = run.setting("max_steps", int)
    return min(total or most, most) if most else total or None


def done(run: RunFacts) -> int:
    """Return the number of steps done, as far as the folder shows."""
    return max(run.metrics.last_step, *(saved.step for saved in run.checkpoints), 0)


def _state(run: RunFacts) -> State:
    # A process that ends after a lost rank holds its lock for a moment longer, while the last page is made. If the run
    # is resumed, its lock is newer than that event, and its start comes when all is restored.
    end = run.journal.end
    is_lost = end is not None and end.is_of_lost_rank and not run.is_locked_anew
    if run.holder and not is_lost:
        return "running"
    if end is not None and end.state in ("finished", "stopped", "failed"):
        return end.state  # type: ignore[return-value]
    # After a lost rank, the process that the lock file names may also live on for a moment without its lock.
    is_copy = run.is_copy and not run.journal.loss
    is_known = run.holder is not None and not (run.other_host or is_copy)
    return "failed" if run.journal.starts and is_known else "unknown"


def _newest(run: RunFacts) -> int | None:
    """Return the step of the newest checkpoint that can be read; None if there is none."""
    return next((saved.step for saved in run.checkpoints if saved.is_readable), None)


def _are_elsewhere(run: RunFacts) -> bool:
    """Whether the events tell of checkpoints, and the folder has none: it was copied without its large files."""
    return run.journal.checkpoints and not run.checkpoints


def _sentence(run: RunFacts, state: State) -> str:
    end, step, kept = end_of(run), done(run), _newest(run)
    of = f" of {end:,}" if end and end != step else ""
    if state == "finished":
        return f"Finished at step {step:,}{of}"
    if state == "running":
        return f"Running at step {step:,}{of}{_left(run, (end or step) - step)}"
    if state == "stopped":
        return f"Stopped at step {step:,}{of}{f'; {_why_none(run)}' if kept is None else ', and saved'}"
    if state == "failed":
        saved = _why_none(run) if kept is None else f"the newest checkpoint is of step {kept:,}"
        return f"Failed after step {step:,}{of}; {saved}"
    if run.journal.starts:
        return f"State unknown: {_why_unknown(run)}; last line at {run.journal.until}"
    return f"State unknown at step {step:,}{of}"


def _why_none(run: RunFacts) -> str:
    """Say why there is no checkpoint from which the run could be resumed."""
    if run.checkpoints:
        return "no checkpoint can be read"
    return "its checkpoints are not in this folder" if _are_elsewhere(run) else "there is no checkpoint"


def _why_unknown(run: RunFacts) -> str:
    if run.other_host:
        return f"its lock was taken on host {run.other_host}"
    if run.is_copy:
        return "this folder is a copy, or has lost its lock file"
    return "this file system has no locks"


def _left(run: RunFacts, steps: int) -> str:
    """Return the time that is left, from the mean times of a step and of the work after it."""
    step, after = run.metrics.steady("step_seconds"), run.metrics.steady("between_seconds")
    if steps <= 0 or not step:
        return ""
    left = steps * (step + (after or 0.0))
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if left >= 2 * size:
            return f", about {left / size:,.0f} {unit} left"
    return ", less than two minutes left"


def _reason(run: RunFacts, state: State) -> str:
    if state == "running":
        return f"Its lock is held by {run.holder}."
    if state == "unknown" and run.journal.starts:
        return (
            "It is running, or has ended without a word in events.jsonl: only the host of its rank 0 can say which, "
            "from the folder into which it writes."
        )
    if state == "unknown":
        return "There is no events.jsonl with a start of the run."
    if state == "failed" and not run.journal.end:
        return run.journal.loss or (
            "The process has ended without a word in events.jsonl: it was killed, ran out of memory, or met an error "
            "that its terminal or job output shows."
        )
    return "" if state == "finished" or not run.journal.end else run.journal.end.text


def _resume(run: RunFacts, state: State) -> str:
    """Return a command that resumes the run; the command that has started it does the same.

    Without a checkpoint there is none: networks of --init-from, which config.json does not name, would be missing.
    """
    if state in ("running", "unknown") or run.config is None or _newest(run) is None:
        return ""
    step, end = done(run), end_of(run)
    if state == "finished" and (end is None or step >= end):
        return ""
    path = run.folder.path.resolve()  # this page may be made in another folder than that of the command
    flags = shlex.join(["--config", str(path / "config.json"), "--run-dir", str(path)])
    journal = run.journal
    if journal.is_elastic:
        return _ELASTIC.format(flags=flags)
    if journal.ranks <= 1:
        return f"python -m hvdgan.train {flags}"
    launcher, hosts = (journal.start.launcher, journal.start.hosts) if journal.start else ("", 1)
    on_one, on_several = _LAUNCHERS.get(launcher, ("", ""))
    return (on_several if hosts > 1 else on_one).format(ranks=journal.ranks, flags=flags)


def _instead(run: RunFacts, state: State) -> str:
    """Say what can be done with a run that has ended early, and has nothing from which a command could resume it."""
    if state not in ("stopped", "failed") or _newest(run) is not None:
        return ""
    if run.checkpoints:
        return "No checkpoint can be read: bring one back, or start anew in another run folder."
    if _are_elsewhere(run):
        return "The events tell of checkpoints: resume the run in the folder that has them, or bring them here."
    return "Nothing is saved yet: the command that started the run begins it anew."


def _history(run: RunFacts) -> list[str]:
    journal = run.journal
    lines = [
        _times("resumed from a checkpoint", journal.restarts.count),
        f"requeued by Slurm, latest as {journal.requeue}" if journal.requeue else "",
        _times("asked to stop by a signal, a stop file or its time budget, as before a requeue", journal.stops),
        _times("resumed from memory with other ranks", journal.recoveries.count),
        _times("lost a rank", journal.lost.count),
        _times("skipped a non-finite update", journal.skipped_updates.count),
        _times("warned", journal.warnings.count),
    ]
    return [line for line in lines if line]


def _times(what: str, count: int) -> str:
    number = {1: "once", 2: "twice"}.get(count, f"{count:,} times")
    return f"{what} {number}" if count else ""
