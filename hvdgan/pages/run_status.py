"""How a run stands: finished, running, stopped or failed, and for what reason."""

import dataclasses
from typing import Literal

from hvdgan.pages.run_facts import RunFacts
from hvdgan.runs.events import FILE, Caution, End, Recovery, SkippedUpdate, Start

State = Literal["finished", "running", "stopped", "failed", "unknown"]


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """How a run stands: a word, a sentence, its reason, how to resume it, and what has happened; empty if nothing."""

    state: State
    sentence: str
    reason: str
    resume: str
    history: list[str]


def status_of(run: RunFacts) -> RunStatus:
    """Tell how a run stands by its lock, its events and its checkpoints."""
    state = _state(run)
    resume = _resume(run) if state in ("stopped", "failed") else ""
    return RunStatus(state, _sentence(run, state), _reason(run, state), resume, _history(run))


def duration(seconds: float) -> str:
    """Return a time in the largest unit of which there are two, such as 3 hours."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} seconds"


def _state(run: RunFacts) -> State:
    # A process that ends after a lost rank holds its lock for a moment longer, while the last page is made. If the run
    # is resumed, its lock is newer than that event, and its start comes when all is restored.
    end = run.journal.end
    if run.holder and (end is None or not end.is_of_lost_rank or run.is_locked_anew):
        return "running"
    if end is not None and end.state in ("finished", "stopped", "failed"):
        return end.state  # type: ignore[return-value]
    # After a lost rank, the process that the lock file names may also live on for a moment without its lock.
    is_elsewhere = run.may_be_held_elsewhere and not run.journal.loss
    return "failed" if run.journal.start and run.holder is not None and not is_elsewhere else "unknown"


def _sentence(run: RunFacts, state: State) -> str:
    end, step = run.journal.last_step or run.setting("max_steps", int), run.done
    of = f" of {end:,}" if end and end != step else ""
    none = "no checkpoint is whole" if run.checkpoints else "there is no checkpoint"
    saved = none if run.newest is None else f"the newest checkpoint is of step {run.newest:,}"
    if state == "running":
        seconds = (run.metrics.steady("step_seconds") or 0.0) + (run.metrics.steady("between_seconds") or 0.0)
        left = ((end or step) - step) * seconds
        return f"Running at step {step:,}{of}" + (f", about {duration(left)} left" if left > 0 else "")
    why = f"{FILE} has no start of the run"
    if run.journal.start:
        why = "its last process was on another host, this folder is a copy, or its file system has no locks"
    planned = sum(stage.steps for stage in run.journal.start.stages) if run.journal.start else step
    is_asked = step == run.setting("max_steps", int) and step < planned
    by_flag = f" of {planned:,}, as --max-steps asked" if is_asked else ""
    return {
        "finished": f"Finished at step {step:,}{of}{by_flag}",
        "stopped": f"Stopped at step {step:,}{of}" + (f"; {none}" if run.newest is None else ", and saved"),
        "failed": f"Failed after step {step:,}{of}; {saved}",
        "unknown": f"State unknown at step {step:,}{of}: {why}",
    }[state]


def _reason(run: RunFacts, state: State) -> str:
    if state == "running":
        return f"Its lock is held by {run.holder}."
    if run.journal.end and state in ("stopped", "failed"):
        return run.journal.end.text
    unsaid = (
        f"The process has ended without a word in {FILE}: it was killed, ran out of memory, or met an error that its "
        "terminal or job output shows."
    )
    return run.journal.loss or unsaid if state == "failed" else ""


def _resume(run: RunFacts) -> str:
    if run.newest is not None:
        return "The same command resumes it:"
    if run.checkpoints:
        return "No checkpoint is whole: bring one back, or start anew in another run folder."
    return "Nothing is saved here: the same command begins it anew:"


def _history(run: RunFacts) -> list[str]:
    journal = run.journal
    jobs = [f"Slurm job {each.slurm_job}, restart {each.slurm_restart}" for each in journal.of(Start) if each.slurm_job]
    counts = {
        "resumed from a checkpoint": len(journal.restarts),
        "asked to stop": sum(end.state == "stopped" for end in journal.of(End)),
        "resumed from memory with other ranks": len(journal.of(Recovery)),
        "lost a rank": len(journal.lost),
        "skipped a non-finite update": len(journal.of(SkippedUpdate)),
        "warned": len(journal.of(Caution)),
    }
    times = {1: "once", 2: "twice"}
    lines = [f"{what} {times.get(count, f'{count:,} times')}" for what, count in counts.items() if count]
    return [*lines, *(f"requeued by Slurm, latest as {job}" for job in jobs[-1:])]
