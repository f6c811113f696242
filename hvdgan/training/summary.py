"""Describes a run in words: for --dry-run, at its start and at its end."""

import json
from collections.abc import Sequence
from itertools import chain

from hvdgan.cli.events import End, Recovery
from hvdgan.cli.launcher import allocated
from hvdgan.distributed import devices
from hvdgan.distributed.devices import Device
from hvdgan.distributed.ranks import Ranks
from hvdgan.training.changes import how_to_continue
from hvdgan.training.record import Record
from hvdgan.training.resume_point import ResumePoint
from hvdgan.training.run import Run
from hvdgan.training.start_lines import paragraphs, shortened, start_of

_LINES = 15
"""lines with which a run begins on the terminal, warnings not counted; log.txt has all"""


def announce(run: Run, resume_point: ResumePoint, record: Record) -> None:
    """Log what is about to be trained; every rank calls this.

    Args:
        run: run, built and restored.
        resume_point: place from which it resumes.
        record: record of the run, which logs the lines.
    """
    say = record.say
    if resume_point.recovered:
        record.tell(Recovery(ranks=run.ranks.size, step=resume_point.step, last_step=run.last_step))
        return
    start = start_of(run, devices.everyones_devices(run.ranks), resume_point.step)
    record.keep(start)
    position = f"a new run, which {_ends(run)}" if start.step == 0 else start.line
    last = [f"run folder {run.run_dir}:", f"{position};", "its config.json has every setting"]
    parts = paragraphs(run, start, last)
    for line in chain.from_iterable(parts):
        record.note(line)
    for line in shortened(parts, _LINES):
        record.show(line)
    # Checkpoints from before --eval-images do not say how many images were evaluated: it was all held-out ones.
    before = (
        resume_point.progress.get("evaluated", len(run.held_out)) if run.held_out and resume_point.progress else None
    )
    changed = run.evaluator.remark(before) if run.evaluator else None
    compared = (run.comparison.about_features(), run.comparison.warning()) if run.comparison else ()
    for remark in [
        *_one_of_many(run.ranks),
        *resume_point.remarks,
        *filter(None, (changed, *compared)),
    ]:
        say(remark)
    if resume_point.step >= run.last_step:
        text = f"nothing to do: step {resume_point.step} of {run.last_step} is reached; {how_to_continue(run)}"
        record.tell(End(state="finished", text=text))


def describe(run: Run, places: Sequence[Device]) -> str:
    """Describe all settings as JSON, and then what a run says at its start, without a limit on the lines.

    Args:
        run: run, built.
        places: devices of all ranks, in rank order.
    """
    last = [f"run folder {run.run_dir}:", f"{_ends(run)};", "--dry-run writes nothing"]
    lines = [line for part in paragraphs(run, start_of(run, places, 0), last) for line in part]
    return "\n".join(["config:", json.dumps(run.settings(), indent=2), *lines, *run.source.remarks])


def end_of(run: Run, first: int, done: int, reason: str | None) -> End:
    """Describe how the steps have ended.

    Args:
        run: run that has ended or stopped.
        first: number of steps done before this launch.
        done: number of steps done now.
        reason: reason to stop before the last step; None: the last step is reached.
    """
    if reason is None:
        text = f"done: {done} steps; samples in {run.run_dir / 'samples'}"
        return End(state="finished", text=text, is_saved=True)
    if done == first:
        when = f"stopped before the first step, at step {done} of {run.last_step} ({reason})"
    else:
        when = f"stopped after step {done} of {run.last_step} ({reason}) and saved"
    return End(state="stopped", text=f"{when}; the same command resumes the run", is_saved=done > first)


def _ends(run: Run) -> str:
    total = run.schedule.total_steps
    return f"ends at step {run.last_step:,}" + (f" of {total:,}" if run.last_step < total else "")


def _one_of_many(ranks: Ranks) -> list[str]:
    """Warn about a single process where Slurm would start more."""
    tasks = allocated()
    if ranks.launcher == "none" and tasks is not None and tasks > 1:
        return [f"one process in a Slurm allocation of {tasks} tasks; srun, or launch/multi_node.sh, starts them all"]
    return []
