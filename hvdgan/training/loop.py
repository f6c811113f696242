"""The training loop: one step after another, and after each what is due: a log, evaluations, samples, a checkpoint."""

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvdgan.data import BadFile
from hvdgan.data.batches import Batches
from hvdgan.errors import RunError
from hvdgan.errors.shared_errors import agree, on_all
from hvdgan.evaluation.comparison import weights_facts
from hvdgan.networks import cpu_or_gpu
from hvdgan.recipe.stage_plan import Position, is_due
from hvdgan.runs import evaluation_log
from hvdgan.training.build import Run
from hvdgan.training.digests import check_layer_state, check_ranks
from hvdgan.training.grids import Grids
from hvdgan.training.means import MeanCheck
from hvdgan.training.memory import MemoryGuard, used_by
from hvdgan.training.observations import Observations
from hvdgan.training.page import Page
from hvdgan.training.record import Record
from hvdgan.training.repeatable import refuse_unrepeatable
from hvdgan.training.saving import Commits, ResumePoint, Saving
from hvdgan.training.stopping import Stopping

_EARLY_GRIDS = (100, 200)
"""steps with a grid of samples, besides those of --sample-every: the first minutes show whether a GAN learns"""
_SHORT = 1000
"""steps to do, below which the losses of a stage are not looked at: to trace them twice more would take too long"""


class Reached(NamedTuple):
    """Where a run has ended: the number of steps done, and whether that was its last step. All of it is saved."""

    step: int
    is_finished: bool


class Loop:
    """The steps of a run, and what is due after each. Every rank runs it; the writers inside act on rank 0 alone."""

    def __init__(
        self, run: Run, resume_point: ResumePoint, *, record: Record, stopping: Stopping, commits: Commits, page: Page
    ) -> None:
        self._run, self._resume_point, self._record = run, resume_point, record
        self._stopping, self._commits = stopping, commits
        self.observations = Observations(run, resume_point, record)
        self.pending = PendingSteps(self.observations, cpu_or_gpu.chosen().steps_behind)
        # One thread, so that a grid is written before a checkpoint: a run that resumes there does not draw it again.
        writer = ThreadPoolExecutor(1, "writer")
        wait = functools.partial(run.ranks.activity.result, writer.submit(threading.current_thread).result())
        self._grids = Grids(run.sampler, run.run_dir / "samples", record, writer, wait, is_root=run.ranks.is_root)
        self._saving = Saving(run, resume_point, record, commits, page, writer, wait)
        self._means, self.warns_of_no_means = list[MeanCheck](), True
        """whether losses that are no means are looked for as a stage begins, and at the first checkpoint after that"""
        self._between_seconds = 0.0  # of the work between the last step and the next one

    def do_steps(self, batches: Batches, guard: MemoryGuard) -> Reached:
        """Do all steps until the last one, or until a request to stop."""
        run, begin = self._run, self._resume_point.step
        try:
            self._grids.write_real(begin)
            if begin == 0 and run.config.sample_every:
                self._grids.write(0)
            if self._commits.every:
                self._saving.commit(begin, run.rank_state.gather(), self.observations.state())
            reached = self._do_steps(batches, guard)
        finally:
            # After any error too, a checkpoint that is being written must be complete when the process ends.
            self._saving.settle()
            self._grids.settle()
        self._saving.finish()
        return reached

    def _do_steps(self, batches: Batches, guard: MemoryGuard) -> Reached:
        run, done = self._run, self._resume_point.step
        if self._stopping.is_time():  # the build may have used up the time, or a signal has come meanwhile
            if not self._resume_point.recovered:
                self._stopping.refuse_used_up_budget()
            elif done:
                self._saving.save(done, run.rank_state.gather(), self.observations.state())
            return Reached(done, is_finished=False)
        with run.ranks.activity.beside(lambda: batches.loaded):
            while done < run.last_step:  # a stage that ends early brings the last step forward
                step, at = done, run.plan.at(done)
                guard.where = f" at step {step}, stage {at.stage.name}"
                if at.stage_step == 0 or step == self._resume_point.step:
                    self._begin_stage(at, step)
                self.step(batches, step, at)
                done = step + 1
                stop, until = self._stopping.is_time(), at.stage.until
                may_end = until is not None and (at.stage_step + 1) % until.window == 0
                if stop or may_end or any(self._due(done, at)):
                    with run.ranks.activity.at(f"end of step {step}"):
                        self.pending.read_all()
                # What is due is asked again: a metric that no longer improves has ended the stage, and perhaps the run.
                stop = stop and done < run.last_step
                begin = time.perf_counter()
                self._work(done, at, self._due(done, at, stop=stop), batches.bad_files)
                self._between_seconds = time.perf_counter() - begin
                if stop:
                    return Reached(done, is_finished=False)
        return Reached(done, is_finished=True)

    def _begin_stage(self, at: Position, step: int) -> None:
        """Begin a stage, or resume in the middle of it."""
        run = self._run
        agree({"stage": at.stage.name, "step": step}, run.ranks, "the stage")
        if at.stage.reset_optimizers and at.stage_step == 0:
            run.state.reset_optimizers(run.recipe, at.stage.owns)
        self.observations.begin_stage(at)

    def step(self, batches: Iterator[dict[str, tf.Tensor]], step: int, at: Position) -> None:
        """Begin one step, and hand the results of an earlier one to the observations."""
        begin = time.perf_counter()
        data = next(batches)
        waited = time.perf_counter() - begin
        if self.warns_of_no_means and (at.stage_step == 0 or step == self._resume_point.step):
            left = self._run.plan.steps_of(at.index) - at.stage_step
            if min(left, self._run.last_step - step) >= _SHORT:
                self._means = [MeanCheck(self._run, self._run.steps[at.index], data)]
            self._say_no_means(step)
            begin = time.perf_counter() - waited
        with self._run.ranks.activity.at(f"step {step}"):
            metrics, finite = self._run.steps[at.index](step, at.stage_step, data)
            self.pending.add(PendingStep(step, at, data, metrics, finite, begin, waited, self._between_seconds))

    def _say_no_means(self, step: int) -> None:
        """Log the losses that are no means over samples, each once; every rank looks, so that none waits for rank 0."""
        with self._run.ranks.activity.at("the check of losses that are no means"):
            lines = [line for check in self._means for line in check.lines(step)]
        for line in lines if self._run.ranks.is_root else ():
            self._record.say(line)

    def _due(self, done: int, at: Position, *, stop: bool = False) -> "Due":
        """What is due after a step, if the run also stops then; the same on every rank."""
        run, config, last = self._run, self._run.config, done == self._run.last_step
        stage_ends = at.stage_step + 1 == run.plan.steps_of(at.index)
        early = config.sample_every > 0 and done in _EARLY_GRIDS
        comparison, every = run.comparison, config.evaluation.eval_every
        paced = bool(comparison and comparison.pace)
        save, commit_every = last or stop or stage_ends or is_due(done, config.checkpoint_every), self._commits.every
        return Due(
            check=is_due(done, config.check_ranks_every),
            log=last or is_due(done, config.log_every),
            memory=last or stage_ends,
            evaluate=bool(run.evaluator) and (last or is_due(done, every)),
            compare=bool(comparison) and (last or is_due(done, config.checkpoint_every if paced else every)),
            sample=last or is_due(done, config.sample_every) or early,
            save=save,
            # After the last step there is no commit: a rank that is lost then is replaced, and the step is redone.
            commit=commit_every > 0 and not (stop or last) and (save or is_due(done, commit_every)),
        )

    def _work(self, done: int, at: Position, due: "Due", bad_files: Sequence[BadFile]) -> None:
        """Do what is due after a step; the observations have the results of all steps if anything is."""
        run, saving = self._run, self._saving
        saving.report()

        if due.check:
            check_ranks(run.ranks, run.state, done)
        if due.log:
            saving.add(self.observations.log(done, at, bad_files))
        if due.memory:
            self._record.say(used_by(at.stage, run.ranks))

        uses_networks = due.evaluate or due.compare or due.sample or due.save or due.commit
        if uses_networks or at.stage_step == 0 or done == self._resume_point.step + 1:
            check_layer_state(run.ranks, run.state, done, at.stage.name)
        if not uses_networks:
            return

        # Each rank has BatchNorm statistics of its own; evaluations and samples use their means. If one of the two
        # fails, the run is saved first.
        everyones = run.rank_state.gather()
        with run.rank_state.averaged(everyones):
            failure = self._tried(self._evaluate, done, at) if due.evaluate else None
            if due.compare and not failure:
                failure = self._tried(self._compare, done, at)
                if failure and run.comparison and run.comparison.pace:  # nobody has asked for it
                    run.comparison.pace.end(f"step {done}", failure, self._record.say)
                    failure = None
            if due.sample and not failure:
                failure = self._draw(done)

        # The best networks are saved although nothing else is; the run neither stops here nor ends a stage.
        only_best = (due.evaluate or due.compare) and not due.save and saving.has_new_best(done)
        if due.save or only_best:
            self._say_no_means(done)
            self._means.clear()
            saving.save(done, everyones, self.observations.state())
        run.ranks.meet("after saving")
        if failure:
            raise failure

        if due.commit or (only_best and self._commits.every):
            saving.commit(done, everyones, self.observations.state())
            self._commits.leave_if_hosts_changed()

    def _tried(self, work: Callable[[int, Position], None], done: int, at: Position) -> Exception | None:
        """Do an evaluation; returns a failure that every rank has alike."""
        try:
            work(done, at)
        except Exception as error:
            # The other ranks do not know of an error that was not exchanged, and wait for this rank.
            if isinstance(error, RunError) or self._run.ranks.size == 1:
                return error
            raise
        return None

    def _evaluate(self, done: int, at: Position) -> None:
        evaluator = self._run.evaluator
        assert evaluator
        self._note(done, at, evaluator(), evaluator.bad_files, "held out")

    def _compare(self, done: int, at: Position) -> None:
        run, comparison = self._run, self._run.comparison
        assert comparison
        if comparison.pace:
            seen = (done - self._resume_point.step) * run.config.global_batch_size
            if not comparison.pace.allows(f"step {done}", seen, self._record.say):
                return
            if not comparison.pace.spent:
                refuse, where = functools.partial(refuse_unrepeatable, state=run.state), f"recipe {run.config.recipe}"
                on_all(lambda: comparison.trace(refuse, where), run.ranks, "the trace of samples")
        values = comparison(self._record.say)
        self._note(done, at, values, comparison.bad_files, "generated")
        self._append(done, values, comparison.facts())

    def _note(self, done: int, at: Position, values: dict[str, float], bad_files: Sequence[BadFile], what: str) -> None:
        self.observations.add_evaluation(values, bad_files)
        self._saving.add_evaluation(done, values)
        self._record.write_evaluation(done, at.stage.name, at.stage_step + 1, values, what)

    def _append(self, done: int, values: dict[str, float], facts: dict[str, Any]) -> None:
        """Write one record of evaluation.jsonl."""
        config, resume_point = self._run.config, self._resume_point
        facts |= weights_facts(config, self._run.recipe, averaged=True)
        facts |= {"precision": config.precision, "seed": config.seed, "truncation": 1.0}
        seen = resume_point.samples_seen(done, config.global_batch_size)
        others = {"run_id": resume_point.run_id, "samples_seen": seen, "by": "training"}
        if self._run.ranks.is_root:
            with self._record.tolerant(evaluation_log.FILE):
                evaluation_log.append(self._run.run_dir, evaluation_log.record_of(done, values, facts, **others))

    def _draw(self, done: int) -> Exception | None:
        """Draw samples on rank 0; returns a failure, such as one of sample()."""
        try:
            self._grids.write(done)
        except Exception as error:
            return error
        return None


class Due(NamedTuple):
    """What is due after a step."""

    check: bool
    log: bool
    memory: bool
    evaluate: bool
    compare: bool
    sample: bool
    save: bool
    commit: bool


class PendingStep(NamedTuple):
    """A step that began at a time of perf_counter, with its seconds of waiting for images, and of work before it."""

    step: int
    at: Position
    data: dict[str, tf.Tensor]
    metrics: dict[str, Any]
    finite: tf.Tensor
    """(n,) bool for each update that was due, in order"""
    begin: float
    waited: float
    between: float


class PendingSteps:
    """Reads whether the updates of steps were finite, in their order, and hands each step to the observations.

    TensorFlow copies a result from a GPU after all work that the GPU has been given when the copy is requested
    (CopyGPUTensorToCPU in its gpu_util.cc). A result that is requested when later steps have begun would be read when
    these have ended, with nothing left for the GPU to do. So where several steps may wait, which `most` says, each
    step's one tensor is requested at once, by a thread that waits for no other.
    """

    def __init__(self, observations: Observations, most: int) -> None:
        self._observations, self._most = observations, most
        # The newest step is requested before the oldest one is awaited.
        self._threads = ThreadPoolExecutor(most + 1, "hvdgan-results") if most > 1 else None
        self._steps: deque[tuple[PendingStep, Callable[[], np.ndarray]]] = deque()
        """steps, each with the function that waits for its result"""
        self._ended = 0.0

    def add(self, step: PendingStep) -> None:
        """Add the newest step, and read the oldest if too many wait."""
        read = step.finite.numpy
        self._steps.append((step, self._threads.submit(read).result if self._threads else read))
        while len(self._steps) > self._most:
            self._read_oldest()

    def read_all(self) -> None:
        """Read all steps, which waits until the newest one has ended."""
        while self._steps:
            self._read_oldest()

    def _read_oldest(self) -> None:
        """Read the oldest step.

        Its time counts from the end of the step before, as far as the host knows it: the times of the steps between two
        read_all() add up to the time that they took together.
        """
        step, wait = self._steps.popleft()
        due = step.at.stage.due(step.at.stage_step)
        skipped = {update.name: not finite for update, finite in zip(due, wait().tolist(), strict=True)}
        now = time.perf_counter()
        newest = self._steps[-1][0].step if self._steps else step.step
        taken = now - max(step.begin, self._ended)
        self._ended = now
        seconds = {"between_seconds": step.between, "wait_seconds": step.waited, "step_seconds": taken}
        self._observations.add(step.step, step.at, step.data, step.metrics, skipped, seconds, newest)
