"""The work that is due between two steps: comparing the ranks, logging, evaluating, sampling and saving."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hvdgan.cli.errors import RunError
from hvdgan.data import BadFile
from hvdgan.evaluation.results import append, record_of, weights_facts
from hvdgan.recipe.schedule import Position, is_due
from hvdgan.training.drift import LayerState, check_ranks
from hvdgan.training.observations import Observations
from hvdgan.training.record import Record
from hvdgan.training.resume_point import Commits, ResumePoint
from hvdgan.training.run import Run
from hvdgan.training.samples import Grids
from hvdgan.training.saving import Saving
from hvdgan.training.summary import end_of

_EARLY_GRIDS = (100, 200)
"""steps with a grid of samples, besides those of --sample-every: the first minutes show whether a GAN learns"""


class PeriodicTasks:
    """Does what is due between two steps. Every rank runs it; the writers inside act on rank 0 alone."""

    def __init__(
        self,
        run: Run,
        resume_point: ResumePoint,
        record: Record,
        commits: Commits,
        observations: Observations,
    ) -> None:
        self._run = run
        self._resume_point = resume_point
        self._record = record
        self._commits = commits
        self._observations = observations
        self._layer_state = LayerState(run.ranks, run.state)
        join = run.ranks.activity.join
        self._grids = Grids(run.sampler, run.run_dir / "samples", record, join, is_root=run.ranks.is_root)
        # The grid is written before the checkpoint, because a run that resumes there does not draw it again.
        self._saving = Saving(run, resume_point, record, commits, self._grids.wait)
        self._evaluations = Evaluations(run, resume_point, record, observations, self._saving.add_evaluation)

    def begin(self) -> None:
        """Write the grid of real images, and make the first commit of an elastic run; every rank calls this."""
        self._grids.write_real()
        if self._resume_point.step == 0 and self._run.config.sample_every:
            self._grids.write(0)
        if self._commits.every:
            self._saving.commit(self._resume_point.step, self._statistics(), self._observations.state())

    def is_due(self, done: int, at: Position) -> bool:
        """Check whether the results of all steps are needed now, even if the run does not stop."""
        may_end = at.stage.until is not None and (at.stage_step + 1) % at.stage.until.window == 0
        return may_end or any(due_after(done, at, self._run, self._commits.every, stop=False))

    def work(self, done: int, at: Position, bad_files: Sequence[BadFile], *, due: bool, stop: bool) -> None:
        """Log, evaluate, sample and save if they are due, or save the best; every rank calls this after each step.

        If something is due, or if the run stops, the observations have the results of all steps.
        """
        run = self._run
        now = due_after(done, at, run, self._commits.every, stop=stop) if due or stop else NOTHING
        self._saving.report()
        if now.check:
            check_ranks(run.ranks, run.state, done)
        if now.log:
            self._saving.add(self._observations.log(done, at, bad_files))
        if now.end:
            self._observations.end_stage(at)
        uses_networks = now.sample or now.evaluate or now.save or now.commit
        self._layer_state.check(done, at.stage.name, due=uses_networks)
        if not uses_networks:
            return
        # Each rank has BatchNorm statistics of its own; evaluations and samples use their means.
        statistics = self._statistics()
        with run.state.statistics.set_to_means(statistics):
            failure = self._evaluate(done, at) if now.evaluate else None
            if now.sample:
                failure = failure or self._draw(done)
        # The best networks are saved although nothing else saves them; the run neither stops here nor ends a stage.
        only_best = now.evaluate and not now.save and self._saving.has_new_best(done)
        if now.save or only_best:
            self._saving.save(done, statistics, self._observations.state())
        run.ranks.meet("after saving")
        if failure:
            raise failure
        if now.commit or (only_best and self._commits.every):
            self._saving.commit(done, statistics, self._observations.state())
            self._commits.leave_if_hosts_changed()

    def save(self, done: int) -> None:
        """Write a checkpoint now; every rank calls this."""
        self._saving.save(done, self._statistics(), self._observations.state())

    def settle(self) -> None:
        """Wait until the last checkpoint and the last grid are written, or have failed."""
        self._saving.settle()
        self._grids.settle()

    def finish(self, done: int, reason: str | None) -> None:
        """Wait until the last checkpoint and grid are written, and log how the run has ended; every rank calls this."""
        self._grids.settle()
        self._saving.finish()
        self._record.tell(end_of(self._run, self._resume_point.step, done, reason))

    def _evaluate(self, done: int, at: Position) -> Exception | None:
        """Run the evaluations; returns a failure, the same on every rank, so that the run is saved first."""
        try:
            self._evaluations(done, at)
        except Exception as error:
            # The other ranks do not know of an error that was not exchanged, and wait for this rank.
            if isinstance(error, RunError) or self._run.ranks.size == 1:
                return error
            raise
        return None

    def _draw(self, done: int) -> Exception | None:
        """Draw samples on rank 0; returns a failure, such as one of sample(), so that the run is saved first."""
        try:
            self._grids.write(done)
        except Exception as error:
            return error
        return None

    def _statistics(self) -> np.ndarray:
        """Return the statistics of each rank, (size, n); every rank calls this."""
        return self._run.ranks.stack(self._run.state.statistics.read())


class Evaluations:
    """Evaluates held-out images, and compares generated with real samples. Every rank calls it; rank 0 writes."""

    def __init__(
        self,
        run: Run,
        resume_point: ResumePoint,
        record: Record,
        observations: Observations,
        add: Callable[[int, dict[str, float]], None],
    ) -> None:
        self._run, self._resume_point = run, resume_point
        self._record, self._observations, self._add = record, observations, add

    def __call__(self, done: int, at: Position) -> None:
        """Evaluate after `done` steps."""
        run = self._run
        if run.evaluator:
            values = run.evaluator()
            self._observations.report(run.evaluator.bad_files)
            self._note(done, at, values, f"{len(run.evaluated or ()):,} held-out samples")
        if run.comparison:
            values = run.comparison(self._record.say)
            self._observations.report(run.comparison.bad_files)
            self._note(done, at, values, f"{run.config.evaluation.eval_samples:,} generated samples")
            if run.ranks.is_root:
                with self._record.tolerant("evaluation.jsonl"):
                    append(run.run_dir, self._result(done, values, run.comparison.facts()))

    def _result(self, done: int, values: dict[str, float], facts: dict[str, Any]) -> dict[str, Any]:
        config, resume_point = self._run.config, self._resume_point
        weights = weights_facts(config, self._run.recipe, averaged=True)
        return record_of(
            done,
            values,
            {**facts, **weights, "precision": config.precision, "seed": config.seed, "truncation": 1.0},
            run_id=resume_point.run_id,
            samples_seen=resume_point.samples_seen(done, config.global_batch_size),
            by="training",
        )

    def _note(self, done: int, at: Position, values: dict[str, float], what: str) -> None:
        self._add(done, values)
        self._observations.evaluated(values)
        self._record.write_evaluation(done, at.stage.name, at.stage_step + 1, values, what)


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
    """Return what is due; the same on every rank."""
    config, last = run.config, done == run.last_step
    stage_ends = at.stage_step + 1 == run.schedule.steps_of(at.index)
    save = last or stop or stage_ends or is_due(done, config.checkpoint_every)
    evaluates = bool(run.evaluator or run.comparison)
    return Due(
        check=is_due(done, config.check_ranks_every),
        log=last or is_due(done, config.log_every),
        end=last or stage_ends,
        evaluate=evaluates and (last or is_due(done, config.evaluation.eval_every)),
        sample=last or is_due(done, config.sample_every) or (config.sample_every > 0 and done in _EARLY_GRIDS),
        save=save,
        # After the last step there is no commit: a rank that is lost then is replaced, and the last step is redone.
        commit=commit_every > 0 and not (stop or last) and (save or is_due(done, commit_every)),
    )
