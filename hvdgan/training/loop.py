"""The training loop: runs the steps of the schedule one after another, until the last one or a request to stop."""

import time
from collections.abc import Iterator

import tensorflow as tf

from hvdgan.data.batches import Batches
from hvdgan.errors.shared_errors import agree
from hvdgan.recipe.schedule import Position
from hvdgan.training.build import Run
from hvdgan.training.memory import MemoryGuard
from hvdgan.training.pending import PendingStep, PendingSteps
from hvdgan.training.periodic import PeriodicTasks
from hvdgan.training.resume_point import ResumePoint
from hvdgan.training.stopping import Stopping


class Loop:
    """The steps of a run, with what is observed of each and what is due between two. Every rank runs it."""

    def __init__(
        self, run: Run, resume_point: ResumePoint, stopping: Stopping, pending: PendingSteps, tasks: PeriodicTasks
    ) -> None:
        self._run, self._resume_point, self._stopping = run, resume_point, stopping
        self._pending, self._tasks = pending, tasks
        self._between_seconds = 0.0
        """time of the work between the last step and the next one"""

    def train(self, batches: Batches, guard: MemoryGuard) -> bool:
        """Run all steps; returns False if a request to stop came before the last one."""
        try:
            self._tasks.begin()
            done, stop = self._run_steps(batches, guard)
        finally:
            # After any error too, a checkpoint that is being written must be complete when the process ends.
            self._tasks.settle()
        self._tasks.finish(done, self._stopping.reason if stop else None)
        return not stop

    def _run_steps(self, batches: Batches, guard: MemoryGuard) -> tuple[int, bool]:
        """Run the steps; returns how many are done in all, and whether a request to stop has ended them."""
        run, done, index = self._run, self._resume_point.step, -1
        if self._stopping.is_time():  # the build may have used up the time, or a signal has come meanwhile
            if not self._resume_point.recovered:
                self._stopping.refuse_used_up_budget()
            elif done:
                self._tasks.save(done)
            return done, True
        with run.ranks.activity.beside(lambda: batches.loaded):
            while done < run.last_step:  # a stage that ends early brings the last step forward
                step, at = done, run.schedule.at(done)
                guard.where = f" at step {step}, stage {at.stage.name}"
                if index != at.index:
                    index = at.index
                    self._begin_stage(at, step)
                self.step(batches, step, at)
                done = step + 1
                stop = self._stopping.is_time()
                if stop or self._tasks.is_due(done, at):
                    self.read_all(step)
                stop = stop and done < run.last_step
                begin = time.perf_counter()
                self._tasks.work(done, at, batches.bad_files, stop=stop)
                self._between_seconds = time.perf_counter() - begin
                if stop:
                    return done, True
        return done, False

    def _begin_stage(self, at: Position, step: int) -> None:
        """Begin a stage, or resume in the middle of it."""
        run = self._run
        agree({"stage": at.stage.name, "step": step}, run.ranks, "the stage")
        if at.stage.reset_optimizers and at.stage_step == 0:
            run.state.reset_optimizers(run.recipe, at.stage.owns)
        self._pending.begin_stage(at)

    def step(self, batches: Iterator[dict[str, tf.Tensor]], step: int, at: Position) -> None:
        """Begin one step, and hand the results of an earlier one to the observations."""
        begin = time.perf_counter()
        data = next(batches)
        arrived = time.perf_counter()
        with self._run.ranks.activity.at(f"step {step}"):
            metrics, finite = self._run.steps[at.index](step, at.stage_step, data)
            if "reduce_seconds" in metrics:  # by the clock, which may have been set meanwhile
                metrics["reduce_seconds"] = min(float(metrics["reduce_seconds"]), time.perf_counter() - arrived)
            waited, between = arrived - begin, self._between_seconds
            self._pending.add(PendingStep(step, at, data, metrics, finite, begin, waited, between))

    def read_all(self, step: int) -> None:
        """Wait until a step has ended, and hand the results of all steps up to it to the observations."""
        with self._run.ranks.activity.at(f"end of step {step}"):
            self._pending.read_all()
