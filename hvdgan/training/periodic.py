"""The work that is due between two steps: comparing the ranks, logging, evaluating, sampling and saving."""

import functools
import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import keras
import numpy as np

from hvdgan.data import BadFile
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError, UserError
from hvdgan.evaluation.comparison import weights_facts
from hvdgan.recipe.schedule import Position, is_due
from hvdgan.runs import evaluation_log
from hvdgan.training.build import Run
from hvdgan.training.grids import Grids
from hvdgan.training.memory import used_by
from hvdgan.training.observations import Observations
from hvdgan.training.record import Record
from hvdgan.training.resume_point import Commits, ResumePoint
from hvdgan.training.saving import Saving
from hvdgan.training.state import TrainState, copy_of
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
        self._run, self._resume_point, self._record = run, resume_point, record
        self._commits, self._observations = commits, observations
        # One thread, so that a grid is written before a checkpoint: a run that resumes there does not draw it again.
        writer = ThreadPoolExecutor(1, "writer")
        wait = functools.partial(run.ranks.activity.result, writer.submit(threading.current_thread).result())
        self._grids = Grids(run.sampler, run.run_dir / "samples", record, writer, wait, is_root=run.ranks.is_root)
        self._saving = Saving(run, resume_point, record, commits, writer, wait)

    def begin(self) -> None:
        """Write the grid of real images, and make the first commit of an elastic run; every rank calls this."""
        self._grids.write_real(self._resume_point.step)
        if self._resume_point.step == 0 and self._run.config.sample_every:
            self._grids.write(0)
        if self._commits.every:
            self._saving.commit(self._resume_point.step, self._statistics(), self._observations.state())

    def is_due(self, done: int, at: Position) -> bool:
        """Check whether the results of all steps are needed now, even if the run does not stop."""
        may_end = at.stage.until is not None and (at.stage_step + 1) % at.stage.until.window == 0
        return may_end or any(due_after(done, at, self._run, self._commits.every, stop=False))

    def work(self, done: int, at: Position, bad_files: Sequence[BadFile], *, stop: bool) -> None:
        """Log, evaluate, sample and save if they are due, or save the best; every rank calls this after each step.

        If something is due, or if the run stops, the observations have the results of all steps.
        """
        run = self._run
        now = due_after(done, at, run, self._commits.every, stop=stop)
        self._saving.saver.report()
        if now.check:
            check_ranks(run.ranks, run.state, done)
        if now.log:
            self._saving.add(self._observations.log(done, at, bad_files))
        if now.end:
            self._record.say(used_by(at.stage, run.ranks))
        uses_networks = now.sample or now.evaluate or now.save or now.commit
        if uses_networks or at.stage_step == 0 or done == self._resume_point.step + 1:
            check_layer_state(run.ranks, run.state, done, at.stage.name)
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
        self._saving.saver.settle()
        self._grids.settle()

    def finish(self, done: int, reason: str | None) -> None:
        """Wait until the last checkpoint and grid are written, and log how the run has ended; every rank calls this."""
        self._grids.settle()
        self._saving.finish()
        self._record.tell(end_of(self._run, self._resume_point.step, done, reason))

    def _evaluate(self, done: int, at: Position) -> Exception | None:
        """Run the evaluations; returns a failure, the same on every rank, so that the run is saved first."""
        run = self._run
        try:
            if run.evaluator:
                self._note(done, at, run.evaluator(), run.evaluator.bad_files, "held out")
            if run.comparison:
                values = run.comparison(self._record.say)
                self._note(done, at, values, run.comparison.bad_files, "generated")
                if run.ranks.is_root:
                    with self._record.tolerant(evaluation_log.FILE):
                        evaluation_log.append(run.run_dir, self._result(done, values, run.comparison.facts()))
        except Exception as error:
            # The other ranks do not know of an error that was not exchanged, and wait for this rank.
            if isinstance(error, RunError) or run.ranks.size == 1:
                return error
            raise
        return None

    def _note(self, done: int, at: Position, values: dict[str, float], bad_files: Sequence[BadFile], what: str) -> None:
        self._observations.add_evaluation(values, bad_files)
        self._saving.add_evaluation(done, values)
        self._record.write_evaluation(done, at.stage.name, at.stage_step + 1, values, what)

    def _result(self, done: int, values: dict[str, float], facts: dict[str, Any]) -> dict[str, Any]:
        config, resume_point = self._run.config, self._resume_point
        weights = weights_facts(config, self._run.recipe, averaged=True)
        return evaluation_log.record_of(
            done,
            values,
            {**facts, **weights, "precision": config.precision, "seed": config.seed, "truncation": 1.0},
            run_id=resume_point.run_id,
            samples_seen=resume_point.samples_seen(done, config.global_batch_size),
            by="training",
        )

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


class Due(NamedTuple):
    """What is due after a step: comparing the ranks, logging, the end of a stage, and so on."""

    check: bool
    log: bool
    end: bool
    evaluate: bool
    sample: bool
    save: bool
    commit: bool


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


def check_ranks(ranks: Ranks, state: TrainState, done: int) -> None:
    """Compare the weights and slots of all ranks; every rank calls this after the same step."""
    own = {id(variable) for variable in state.of_rank()}  # these may differ
    mine = _digests({name: variable for name, variable in state.tensors().items() if id(variable) not in own})
    whole = hashlib.sha256("".join(mine.values()).encode()).hexdigest()
    if len(set(ranks.gather(whole, "digest of the weights"))) == 1:
        return
    apart = _apart(ranks, mine, "digests of the weights")
    raise RunError(
        f"step {done}: the ranks have drifted apart in {len(apart)} of {len(mine)} tensors: {', '.join(apart[:5])}; "
        "they no longer train one model; resume from the last checkpoint, and look for a recipe that depends on the "
        "rank, or for hardware that computes wrongly"
    )


def check_layer_state(ranks: Ranks, state: TrainState, done: int, stage: str) -> None:
    """Compare the state of layers, other than statistics of samples; every rank calls this after the same step.

    A checkpoint holds one copy of this state for all ranks, so state that differs between the ranks would be lost.
    """
    variables = state.other_state()
    if ranks.size == 1 or not variables:
        return
    if apart := _apart(ranks, _digests(variables), "state of the layers"):
        more = f" (and {len(apart) - 1} more)" if apart[1:] else ""
        raise UserError(
            f"step {done}, stage {stage}: {apart[0]} differs between the ranks{more}, and a checkpoint holds one copy "
            "for all ranks; let it depend on the step alone, declare it in state() of the recipe, train it as a weight "
            '(docs/recipes.md, "Codebooks"), or make a mean that no loss reads with add_weight(..., aggregation="mean")'
        )


def _apart(ranks: Ranks, mine: Mapping[str, str], what: str) -> list[str]:
    """The names whose digests differ between the ranks."""
    everyones = ranks.gather(dict(mine), what)
    return [name for name in mine if len({each[name] for each in everyones}) > 1]


def _digests(variables: Mapping[str, keras.Variable]) -> dict[str, str]:
    """The SHA-256 of each variable's value."""
    return {name: hashlib.sha256(copy_of(variable).tobytes()).hexdigest() for name, variable in variables.items()}
