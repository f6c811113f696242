"""What is due between two steps."""

from typing import NamedTuple

from hvdgan.recipe.schedule import Position, is_due
from hvdgan.training.run import Run


class Due(NamedTuple):
    """What is due after a step: comparing the ranks, logging, the end of a stage, and so on."""

    check: bool
    log: bool
    end: bool
    evaluate: bool
    sample: bool
    save: bool
    commit: bool


NOTHING = Due(*[False] * len(Due.__annotations__))


def due_after(done: int, at: Position, run: Run, commit_every: int, *, stop: bool) -> Due:
    """Return what is due; the same on every rank.

    Args:
        done: number of steps done.
        at: position of the last step.
        run: run, built.
        commit_every: number of steps between two commits of an elastic run; 0: no commits.
        stop: True if the run stops after this step.
    """
    config, last = run.config, done == run.last_step
    stage_ends = at.stage_step + 1 == run.schedule.steps_of(at.index)
    save = last or stop or stage_ends or is_due(done, config.checkpoint_every)
    evaluates = bool(run.evaluator or run.comparison)
    return Due(
        check=is_due(done, config.check_ranks_every),
        log=last or is_due(done, config.log_every),
        end=last or stage_ends,
        evaluate=evaluates and (last or is_due(done, config.evaluation.eval_every)),
        sample=last or is_due(done, config.sample_every),
        save=save,
        # After the last step there is no commit: a rank that is lost then is replaced, and the last step is redone.
        commit=commit_every > 0 and not (stop or last) and (save or is_due(done, commit_every)),
    )
