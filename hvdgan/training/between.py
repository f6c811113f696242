"""The work that is due between two steps: comparing the ranks, logging, evaluating, sampling and saving."""

from collections.abc import Sequence

import numpy as np

from hvdgan.cli.errors import RunError
from hvdgan.data import BadFile
from hvdgan.recipe.schedule import Position
from hvdgan.training.commits import Commits
from hvdgan.training.drift import LayerState, check_ranks
from hvdgan.training.due import NOTHING, due_after
from hvdgan.training.evaluations import Evaluations
from hvdgan.training.observations import Observations
from hvdgan.training.record import Record
from hvdgan.training.resume_point import ResumePoint
from hvdgan.training.run import Run
from hvdgan.training.samples import Grids
from hvdgan.training.saving import Saving
from hvdgan.training.summary import end_of


class Between:
    """Does what is due between two steps. Every rank runs it; the writers inside act on rank 0 alone.

    Args:
        run: run, built and restored.
        resume_point: place from which the run resumes.
        record: record of the run.
        commits: receives the commits of an elastic run.
        observations: results of the steps, which are logged and saved.
    """

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
        # A run that resumes after a checkpoint does not draw the grid of its step again.
        self._saving = Saving(run, resume_point, record, commits, self._grids.wait)
        self._evaluations = Evaluations(run, resume_point, record, observations, self._saving.add_evaluation)

    def begin(self) -> None:
        """Write the grid of real images, and make the first commit of an elastic run; every rank calls this."""
        self._grids.write_real()
        if self._commits.every:
            self._saving.commit(self._resume_point.step, self._statistics(), self._observations.state())

    def is_due(self, done: int, at: Position) -> bool:
        """Check whether the results of all steps are needed now, even if the run does not stop.

        Args:
            done: number of steps done.
            at: position of the last step.
        """
        may_end = at.stage.until is not None and (at.stage_step + 1) % at.stage.until.window == 0
        return may_end or any(due_after(done, at, self._run, self._commits.every, stop=False))

    def work(self, done: int, at: Position, bad_files: Sequence[BadFile], *, due: bool, stop: bool) -> None:
        """Log, evaluate, sample and save if they are due, or save the best; every rank calls this after each step.

        If something is due, or if the run stops, the observations have the results of all steps.

        Args:
            done: number of steps done.
            at: position of the last step.
            bad_files: broken files that this rank has met while training.
            due: result of is_due().
            stop: True if the run stops after this step.

        Raises:
            RunError: the ranks have drifted apart, too many files are broken, a loss is not finite, or no held-out
                image can be read.
            HostsChanged: other ranks are to take part in an elastic run.
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
        """Wait until the last checkpoint and grid are written, and log how the run has ended; every rank calls this.

        Args:
            done: number of steps done.
            reason: reason to stop before the last step; None: the last step is reached.

        Raises:
            RunError: on every rank, if the checkpoint could not be written.
        """
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
