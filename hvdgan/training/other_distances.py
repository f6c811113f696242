"""Begins the best value and a plateau anew where a resumed run compares samples in another way than before."""

from typing import Any

from hvdgan.training.resume_point import ResumePoint
from hvdgan.training.run import Run


def scale_of(run: Run) -> dict[str, Any] | None:
    """What the distances depend on besides the networks, as JSON types; None if the run compares no samples."""
    return None if run.comparison is None else run.comparison.scale()


def begin_anew(run: Run, resume_point: ResumePoint) -> None:
    """Drop saved distances that those of this run cannot be compared with; every rank calls this.

    Checkpoints from before the scale was saved do not say how samples were compared: theirs are kept.
    """
    progress, now = resume_point.progress, scale_of(run)
    before = progress.get("scale")
    if run.comparison is None or not now or not before or before == now:
        return
    names, anew = run.comparison.names, list[str]()
    if (best := progress.get("best")) and best["metric"] in names:
        progress = {**progress, "best": None}
        anew.append("the best checkpoint")
    if _plateau_of(run, resume_point.step) in names:
        progress = {**progress, "ranks": [{**each, "watch": None} for each in progress.get("ranks", [])]}
        anew.append("the plateau that ends the stage")
    resume_point.progress = progress
    changed = ", ".join(sorted(name for name in before | now if before.get(name) != now.get(name)))
    end = f": {' and '.join(anew)} will be sought anew" if anew else ""
    resume_point.remarks.append(
        f"warning: samples are compared in another way than before ({changed}), so the distances up to step "
        f"{resume_point.step} have another scale than those after it{end}"
    )


def _plateau_of(run: Run, step: int) -> str | None:
    """The metric on which the stage of a step ends; None if it has none, or if no step is left."""
    if step >= run.schedule.total_steps:
        return None
    until = run.schedule.at(step).stage.until
    return None if until is None else until.metric
