"""The training loop: runs the steps of the schedule, and logs, evaluates, samples and saves between them."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.cli.errors import RunError
from hvdgan.cli.shared_errors import agree
from hvdgan.data.pipeline import Batches
from hvdgan.recipe.schedule import Position
from hvdgan.training.building.run import Run
from hvdgan.training.monitoring.bad_files import BadFiles
from hvdgan.training.monitoring.bad_updates import BadUpdates, without_skipped
from hvdgan.training.monitoring.bottleneck import InputCheck
from hvdgan.training.monitoring.drift import LayerState, check_ranks
from hvdgan.training.monitoring.evaluation import Evaluator
from hvdgan.training.monitoring.meter import Meter
from hvdgan.training.monitoring.plateau import Watch
from hvdgan.training.monitoring.record import Record
from hvdgan.training.monitoring.samples import Grids
from hvdgan.training.monitoring.stopping import Stopping
from hvdgan.training.resuming.commits import Commits
from hvdgan.training.resuming.loop_state import collect, part_of_rank
from hvdgan.training.resuming.resume_point import Found
from hvdgan.training.resuming.saving import Saving
from hvdgan.training.steps.diagnosis import not_finite
from hvdgan.training.summary import end_of

Steps = Iterable[tuple[int, Position]]


def steps_from(run: Run, first: int) -> Iterator[tuple[int, Position]]:
    """Yield the steps of a run from the first that is not done to the last, each with its position in the schedule."""
    step = first
    while step < run.last_step:  # a stage that ends early brings the last step forward
        yield step, run.schedule.at(step)
        step += 1


class Loop:
    """The steps of a run and what happens between them. Every rank runs it; the writers inside act on rank 0 alone.

    Args:
        run: run, built and restored.
        found: place from which the run resumes.
        record: record of the run.
        stopping: requests to stop before the last step.
        commits: receives the commits of an elastic run.
    """

    def __init__(self, run: Run, found: Found, record: Record, stopping: Stopping, commits: Commits) -> None:
        self.run = run
        self.found = found
        self.record = record
        self.stopping = stopping
        self.commits = commits
        config, ranks, source, progress = run.config, run.ranks, run.source, found.progress
        self.weights = ranks.weights(config.global_batch_size)
        self.mine = part_of_rank(ranks, progress.get("ranks", []))
        """this rank's part of the state that the interrupted loop has saved"""
        max_bad, saved = config.max_bad_fraction, progress.get("bad_files", {})
        self.bad_files = BadFiles(source.name, source.bad_files, source.total, max_bad, ranks, record.say, saved=saved)
        self.bad_updates = BadUpdates(ranks, config.max_bad_steps, record.say, progress.get("bad_updates", {}))
        self.layer_state = LayerState(ranks, run.state)
        self.meter = Meter(ranks, config, record, self.bad_files, self.mine.get("window"))
        self.input_check = InputCheck(ranks, config, record.say, prepared=source.prepared)
        self.watch = Watch(None)
        self.saving = Saving(run, found, record, commits)
        self.grids = Grids(run.sampler, run.run_dir / "samples", record, is_root=ranks.is_root)

    def train(self, batches: Batches, steps: Steps) -> bool:
        """Run all steps; returns False if a request to stop came before the last one.

        Args:
            batches: batches of this rank, from the first step on.
            steps: steps to run, as steps_from() yields them.

        Raises:
            RunError: the data, a checkpoint or the run itself has failed.
            HostsChanged: other ranks are to take part in an elastic run.
        """
        self.grids.write_real()
        try:
            if self.commits.every:
                self.saving.commit(self.found.step, self._statistics(), self._state())
            done, stop = self._all(batches, steps)
        finally:
            # After any error too, a checkpoint that is being written must be complete when the process ends.
            self.saving.settle()
        self.saving.finish()
        self.record.say(end_of(self.run, self.found.step, done, self.stopping.reason if stop else None))
        return not stop

    def _all(self, batches: Batches, steps: Steps) -> tuple[int, bool]:
        """Run the steps; returns how many are done in all, and whether a request to stop has ended them."""
        done, index = self.found.step, -1
        if self.stopping.is_time():  # the build may have used up the time, or a signal has come meanwhile
            if not self.found.recovered:
                self.stopping.refuse_used_up_budget()
            elif done:
                self.saving.save(done, self._statistics(), self._state())
            return done, True
        with self.run.ranks.activity.beside(lambda: batches.loaded):
            for step, at in steps:
                if index != at.index:
                    index = at.index
                    self._begin_stage(at, step)
                self.step(batches, step, at)
                self.record.advance(at.stage.name)
                done = step + 1
                if self.watch.is_over(at.stage_step + 1, self.run.ranks, self.weights):
                    self._end_stage_early(at)
                stop = self.stopping.is_time() and done < self.run.last_step
                self.between(batches, done, at, stop=stop)
                if stop:
                    return done, True
        return done, False

    def _begin_stage(self, at: Position, step: int) -> None:
        """Begin a stage, or resume in the middle of it."""
        run = self.run
        agree({"stage": at.stage.name, "step": step}, run.ranks, "the stage")
        if at.stage.reset_optimizers and at.stage_step == 0:
            run.state.reset_optimizers(run.recipe, at.stage.owns)
        self.watch = Watch(at.stage.until, self.mine.get("watch") if at.stage_step else None)

    def _end_stage_early(self, at: Position) -> None:
        if at.stage_step + 1 == at.stage.steps or at.stage.until is None:
            return
        self.run.schedule.ended[at.index] = at.stage_step + 1
        self.record.say(
            f"stage {at.stage.name} ends after {at.stage_step + 1} of {at.stage.steps} steps: {at.stage.until.metric} "
            f"no longer improves; this run ends at step {self.run.last_step}"
        )

    def step(self, batches: Iterator[dict[str, tf.Tensor]], step: int, at: Position) -> None:
        """Run one step, and collect its metrics.

        Args:
            batches: iterator whose next batch the step takes.
            step: global step, from 0.
            at: position of the step in the schedule.
        """
        begin = time.perf_counter()
        data = next(batches)
        arrived = time.perf_counter()
        stage_step = self.run.steps[at.index]
        with self.run.ranks.activity.at(f"step {step}"):
            metrics, finite = stage_step(step, at.stage_step, data)
            # Reading these values waits until the step ends, which makes step_seconds true.
            skipped = {update: not is_finite.numpy() for update, is_finite in finite.items()}
        end = time.perf_counter()
        self.input_check.add(arrived - begin, end - begin)
        self.bad_updates.count(
            at.stage.name, step, metrics, skipped, lambda update: not_finite(stage_step, update, step, data)
        )
        metrics = without_skipped(metrics, skipped)
        self.meter.add({**metrics, "wait_seconds": arrived - begin, "step_seconds": end - begin})
        self.watch.add(metrics)

    def between(self, batches: Batches, done: int, at: Position, *, stop: bool) -> None:
        """Log, evaluate, sample and save if they are due; every rank takes part.

        Args:
            batches: batches of this rank, whose broken files are reported.
            done: number of steps done.
            at: position of the last step.
            stop: True if the run stops after this step.
        """
        run, config = self.run, self.run.config
        self.saving.report()
        if config.check_ranks_every and done % config.check_ranks_every == 0:
            check_ranks(run.ranks, run.state, done)
        last = done == run.last_step

        def is_due(every: int) -> bool:
            return last or (every > 0 and done % every == 0)

        stage_ends = at.stage_step + 1 == run.schedule.steps_of(at.index)
        save = stop or stage_ends or is_due(config.checkpoint_every)
        # After the last step there is no commit: a rank that is lost then is replaced, and the last step is redone.
        commit = self.commits.every > 0 and not (stop or last) and (save or is_due(self.commits.every))
        sample = is_due(config.sample_every)
        evaluator = run.evaluator if is_due(config.eval_every) else None
        if is_due(config.log_every):
            self.saving.add(self.meter.log(done, at, batches.bad_files))
        due = sample or evaluator is not None or save or commit
        self.layer_state.check(done, at.stage.name, due=due)
        if not due:
            return
        # Each rank has BatchNorm statistics of its own; evaluations and samples use their means.
        statistics = self._statistics()
        with run.state.statistics.set_to_means(statistics):
            failure = self._evaluate(evaluator, done, at) if evaluator else None
            if sample:
                self.grids.write(done)
        if save:
            self.saving.save(done, statistics, self._state())
        run.ranks.meet("after saving")
        if failure:
            raise failure
        if commit:
            self.saving.commit(done, statistics, self._state())
            self.commits.leave_if_hosts_changed()

    def _evaluate(self, evaluator: Evaluator, done: int, at: Position) -> RunError | None:
        """Evaluate the held-out images; returns a failure, the same on every rank, so that the run is saved first."""
        try:
            values = evaluator()
            self.bad_files.report(evaluator.bad_files)
        except RunError as error:
            return error
        self.saving.add(values)
        self.record.write_evaluation(done, at.stage.name, at.stage_step + 1, values)
        return None

    def _statistics(self) -> np.ndarray:
        """Return the statistics of each rank, (size, n); every rank calls this."""
        return self.run.ranks.stack(self.run.state.statistics.read())

    def _state(self) -> dict[str, Any]:
        return collect(self.run, self.meter, self.watch, self.bad_files, self.bad_updates)
