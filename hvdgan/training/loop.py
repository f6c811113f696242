"""From a built run to its end: restore, broadcast once, then the schedule step by step."""

import dataclasses
import math
import time
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.checkpoints import checkpoint
from hvdgan.checkpoints.retention import Best, Retention
from hvdgan.checkpoints.saver import Saver
from hvdgan.cli.config import Resume
from hvdgan.cli.errors import RunError
from hvdgan.cli.pictures import save_grid
from hvdgan.data.pipeline import Batches
from hvdgan.distributed.affinity import cores_of_rank
from hvdgan.distributed.collective_errors import collective_failure
from hvdgan.distributed.liveness.heartbeat import Heartbeat
from hvdgan.recipe import mistakes
from hvdgan.recipe.schedule import Position
from hvdgan.training.commits import Commits
from hvdgan.training.monitoring.bad_files import BadFiles
from hvdgan.training.monitoring.bottleneck import InputCheck, verdict
from hvdgan.training.monitoring.evaluation import Evaluator
from hvdgan.training.monitoring.guards import BadUpdates, LayerState, check_ranks, without_skipped
from hvdgan.training.monitoring.plateau import Watch
from hvdgan.training.monitoring.record import Record, Window, merge_states
from hvdgan.training.monitoring.stopping import Stopping
from hvdgan.training.resuming.claim import Found, claim, snapshot
from hvdgan.training.run import Run
from hvdgan.training.steps.step import StageStep
from hvdgan.training.summary import announce


def train(run: Run, resume: Resume, heart: Heartbeat, stopping: Stopping | None = None) -> bool:
    """Train to the last step of the schedule or of --max-steps, from where the run folder or a checkpoint stopped.

    Args:
        run: from hvdgan.training.run.build.
        resume: where to begin.
        heart: knows which rank is gone.
        stopping: tells when to end before the last step; None: by a signal or RUN_DIR/stop.

    Returns:
        Whether the last step is reached; otherwise a signal, the time or RUN_DIR/stop ended it, and it has saved.

    Raises:
        UserError: the run folder cannot be used as resume says.
        RunError: a checkpoint cannot be read or written, the data fails, or the training diverged.
    """
    if stopping:
        return go_on(run, restore(run, resume), heart, stopping)
    with Stopping(run.ranks, run.run_dir / "stop", None) as stopping:
        return go_on(run, restore(run, resume), heart, stopping)


def go_on(run: Run, found: Found, heart: Heartbeat, stopping: Stopping, commits: Commits | None = None) -> bool:
    """Train from where restore() has brought the run; as train().

    Args:
        run: built and restored.
        found: where it goes on; its lock is closed at the end.
        heart: knows which rank is gone.
        stopping: tells when to end before the last step.
        commits: where an elastic run keeps what it goes back to.

    Raises:
        HostsChanged: in an elastic run, after a commit.
        LostPeer: a collective has failed.
    """
    stopping.take_interrupts()
    try:
        return _train(run, found, heart, stopping, commits)
    finally:
        if found.lock:
            found.lock.close()


def _train(run: Run, found: Found, heart: Heartbeat, stopping: Stopping, commits: Commits | None) -> bool:
    try:
        record = Record(run.run_dir, is_root=run.ranks.is_root, start_step=found.step, total_steps=run.last_step)
    except OSError as error:
        raise _as_run_error(run, error, heart) from error
    try:
        announce(run, found, record.say)
        if run.ranks.is_root:
            with record.tolerant("the index of the data"):
                run.scans.write()
        return found.step >= run.last_step or _Loop(run, record, found, stopping, commits).steps()
    except (RunError, OSError, tf.errors.OpError) as error:
        failure = _as_run_error(run, error, heart)
        record.say(f"stopped: {failure}")
        if failure is error:
            raise
        raise failure from error
    finally:
        record.close()


def restore(run: Run, resume: Resume) -> Found:
    """Restore on rank 0, and give all ranks what it has found; raises what train() does."""
    ranks, state = run.ranks, run.state
    found = Found()

    def work() -> dict[str, Any]:
        nonlocal found
        found = claim(run, resume)
        saved_by = 1 if found.statistics is None else len(found.statistics)
        return {**{name: getattr(found, name) for name in known}, "saved_by": saved_by}

    known = ("step", "position", "run_id", "progress")  # on every rank: any may be rank 0 next in an elastic run
    restored = ranks.from_root(work, "restore")
    found.step, found.position, found.run_id, found.progress = (restored[name] for name in known)
    run.schedule.restore(found.progress)
    ranks.broadcast(list(state.tensors().values()))
    if restored["saved_by"] == ranks.size > 1:
        # With as many ranks as before each goes on with its own; with more or fewer all go on with the means.
        mine = state.read_statistics()
        everyones = np.zeros((ranks.size, len(mine))) if found.statistics is None else found.statistics
        state.write_statistics(ranks.broadcast_array(everyones.astype(mine.dtype))[ranks.rank])
    return found


def _as_run_error(run: Run, error: Exception, heart: Heartbeat) -> Exception:
    """The one line that an error comes to, where it is one of the known kinds."""
    if isinstance(error, OSError):
        return RunError(f"{run.run_dir} cannot be written: {error}; free space or rights, then resume")
    if isinstance(error, tf.errors.OpError):
        updates = ((stage.name, update.name) for stage in run.schedule.stages for update in stage.updates)
        return collective_failure(error, heart.opinion) or mistakes.in_graph(error, run.recipe, updates) or error
    return error


class _Loop:
    """The steps of a run and what happens between them.

    Args:
        run: built and restored.
        record: of what happens.
        found: where the run goes on.
        stopping: tells when to end before the last step.
        commits: where an elastic run keeps what it goes back to.
    """

    def __init__(self, run: Run, record: Record, found: Found, stopping: Stopping, commits: Commits | None) -> None:
        self.run = run
        self.record = record
        self.found = found
        self.stopping = stopping
        self.commits = commits
        self.weights = run.ranks.weights(run.config.global_batch_size)
        progress, config = found.progress, run.config
        source, most = run.source, config.max_bad_fraction
        saved = progress.get("bad_files", {})
        self.bad_files = BadFiles(source.name, source.bad_files, source.total, most, run.ranks, record.say, saved=saved)
        self.bad_updates = BadUpdates(run, record.say, progress.get("bad_updates", {}))
        self.layer_state = LayerState(run)
        mine = self._own_part(progress.get("ranks", []))
        self.window = Window(mine.get("window"))
        self.input_check = InputCheck()
        self.threads = config.pipeline.threads or cores_of_rank(run.ranks)
        self._saved_watch = mine.get("watch")
        self.watch: Watch | None = None
        self.best = Best.of(config.best_metric, config.best_mode, progress.get("best"))
        self.measured: dict[str, float] = dict(progress.get("measured", {}))
        """the metrics written since the last checkpoint"""
        self.sampler = run.sampler if run.ranks.is_root else None
        self.saver = None
        if run.ranks.is_root:
            self.saver = Saver(run.checkpoints, Retention(config.keep), record.say, run.ranks.activity.join)
        self.evaluator = run.evaluator

    def steps(self) -> bool:
        """All steps to the run's last; returns whether it is reached."""
        run, step = self.run, self.found.step
        if self.sampler:
            with self.record.tolerant("samples"):
                save_grid(run.run_dir / "samples" / "real.png", self.sampler.real)
        try:
            self._commit_first(step)
            step, stop = self._run_steps(step)
        finally:
            # Whatever happened: what is being written must be there afterwards.
            if self.saver:
                self.saver.settle()
        run.ranks.from_root(self.saver.finish if self.saver else lambda: None, "last checkpoint")
        why = self.stopping.reason
        if stop and step == self.found.step:
            self.record.say(
                f"stopped before the first step, at step {step} of {run.last_step} ({why}); the same command goes on"
            )
        elif stop:
            self.record.say(f"stopped after step {step} of {run.last_step} ({why}) and saved; the same command goes on")
        else:
            self.record.say(f"done: {run.last_step} steps; samples in {run.run_dir / 'samples'}")
        return not stop

    def _run_steps(self, step: int) -> tuple[int, bool]:
        """From a step on to the last, or to a wish to stop; returns the steps done, and whether it was that."""
        run, index = self.run, -1
        # The build may have used up the time, or a signal have come meanwhile.
        stop = self.stopping.is_time()
        if stop and self.stopping.is_out_of_time and not self.found.recovered:
            raise RunError(
                f"--time-budget is used up before the first step: listing the data, building and tracing took "
                f"{self.stopping.minutes:.1f} minutes; raise it, since the same command would not get further"
            )
        if stop and self.found.recovered and step:
            self._save(step, run.ranks.stack(run.state.read_statistics()))
        with self._batches() as batches, run.ranks.activity.beside(lambda: batches.loaded):
            while step < run.last_step and not stop:
                at = run.schedule.at(step)
                if index != at.index:
                    index = at.index
                    self._begin(at, step)
                self._step(run.steps[index], batches, step, at.stage_step)
                self.record.advance(at.stage.name)
                step += 1
                if self.watch and self.watch.is_over(at.stage_step + 1, run.ranks, self.weights):
                    self._end_early(at)
                stop = self.stopping.is_time() and step < run.last_step
                self._between(batches, step, at, stop)
        return step, stop

    def _begin(self, at: Position, step: int) -> None:
        """Enter a stage, or go on in the middle of it."""
        run = self.run
        run.ranks.agree({"stage": at.stage.name, "step": step}, "the stage")
        if at.stage.reset_optimizers and at.stage_step == 0:
            run.state.reset_optimizers(run.recipe, at.stage.owns)
        saved = self._saved_watch if at.stage_step else None
        self.watch = Watch(at.stage.until, saved) if at.stage.until else None

    def _end_early(self, at: Position) -> None:
        if at.stage_step + 1 == at.stage.steps or at.stage.until is None:
            return
        self.run.schedule.ended[at.index] = at.stage_step + 1
        self.record.say(
            f"stage {at.stage.name} ends after {at.stage_step + 1} of {at.stage.steps} steps: {at.stage.until.metric} "
            f"no longer gets better; this run ends at step {self.run.last_step}"
        )

    def _step(self, stage_step: StageStep, batches: Batches, step: int, step_of_stage: int) -> None:
        begin = time.perf_counter()
        data = next(batches)
        arrived = time.perf_counter()
        with self.run.ranks.activity.at(f"step {step}"):
            metrics, finite = stage_step(step, step_of_stage, data)
            # Reading what was finite waits for the step to end, which makes step_seconds true.
            skipped = {update: not verdict.numpy() for update, verdict in finite.items()}
        end = time.perf_counter()
        if self.input_check.add(arrived - begin, end - begin):
            everyones = self.run.ranks.gather(self.input_check.seconds, "seconds waited for images")
            prepared = self.run.source.prepared
            self.record.say(verdict(everyones, self.run.config, threads=self.threads, prepared=prepared))
        self.bad_updates.count(stage_step, step, data, metrics, skipped)
        metrics = without_skipped(metrics, skipped)
        self.window.add({**metrics, "wait_seconds": arrived - begin, "step_seconds": end - begin})
        if self.watch:
            self.watch.add(metrics)

    def _between(self, batches: Batches, done: int, at: Position, stop: bool) -> None:
        """Log, evaluate, sample and save where it is time; every rank takes part, and rank 0 alone writes."""
        run, config = self.run, self.run.config
        if self.saver:
            self.saver.report()
        if config.check_ranks_every and done % config.check_ranks_every == 0:
            check_ranks(run, done)
        ends = at.stage_step + 1 == run.schedule.steps_of(at.index)
        last = done == run.last_step

        def is_time(every: int) -> bool:
            return last or (every > 0 and done % every == 0)

        sample = is_time(config.sample_every)
        write = stop or ends or is_time(config.checkpoint_every)
        # Whoever is lost after the last step is lost to what is left to write: then it is done again.
        commit = self.commits is not None and not (stop or last) and (write or is_time(self.commits.every))
        evaluator = self.evaluator if is_time(config.eval_every) else None
        if is_time(config.log_every):
            self._log(batches, done, at)
        looks = sample or evaluator is not None or write or commit
        self.layer_state.check(done, at.stage.name, due=looks)
        if not looks:
            return
        # BatchNorm's statistics are each rank's own; whoever looks at the networks sees their means.
        statistics = run.ranks.stack(run.state.read_statistics())
        with run.state.with_statistics(statistics):
            failure = self._evaluate(evaluator, done, at) if evaluator else None
            if sample and self.sampler:
                with self.record.tolerant("samples"):
                    save_grid(run.run_dir / "samples" / f"step-{done:08d}.png", self.sampler())
        if write:
            self._save(done, statistics)
        run.ranks.meet("after saving")
        if failure:
            raise failure
        if commit and self.commits:
            self._commit(self.commits, done, statistics)
            self.commits.leave_if_hosts_changed()

    def _commit_first(self, step: int) -> None:
        """In an elastic run there is always something to go back to."""
        if not self.commits:
            return
        statistics = self.run.ranks.stack(self.run.state.read_statistics())
        self._commit(self.commits, step, statistics)

    def _commit(self, commits: Commits, done: int, statistics: np.ndarray) -> None:
        progress = {**self._progress(), "measured": self.measured}
        commits.take(self._snapshot(done, statistics, progress))

    def _snapshot(self, done: int, statistics: np.ndarray, progress: dict[str, Any]) -> checkpoint.Snapshot:
        position = self.found.position + (done - self.found.step) * self.run.config.global_batch_size
        return snapshot(self.run, done, position, self.found.run_id, statistics, progress)

    def _save(self, done: int, statistics: np.ndarray) -> None:
        """Copy to memory, and write from there while the training goes on."""
        if self.best:
            self.best = self.best.after(done, self.measured.get(self.best.metric))
        self.measured = {}
        progress = self._progress()
        if self.saver:
            self.saver.save(self._snapshot(done, statistics, progress))

    def _evaluate(self, evaluator: Evaluator, done: int, at: Position) -> RunError | None:
        """Measure the held-out images; returns what has failed, on every rank alike: what is due is saved before."""
        try:
            values = evaluator()
            self.bad_files.report(evaluator.bad_files)
        except RunError as error:
            return error
        self.measured.update(values)
        self.record.write_evaluation(done, at.stage.name, at.stage_step + 1, values)
        return None

    def _progress(self) -> dict[str, Any]:
        """What a resumed loop needs beside the tensors; every rank calls it."""
        weight = self.weights[self.run.ranks.rank]
        mine = {"window": self.window.state(), "watch": self.watch and self.watch.state(), "weight": weight}
        everyones = self.run.ranks.gather(mine, "progress")
        # Copies: a thread writes them while the steps go on.
        return {
            **self.run.schedule.progress(),
            "bad_files": dict(self.bad_files.known),
            "bad_updates": dict(self.bad_updates.counts),
            "best": self.best and dataclasses.asdict(self.best),
            "evaluated": self.run.evaluated and len(self.run.evaluated),
            "ranks": everyones,
        }

    def _own_part(self, everyones: list[dict[str, Any]]) -> dict[str, Any]:
        """What this rank was in the middle of; the mean of all where there were more or fewer ranks."""
        if not everyones:
            return {}
        if len(everyones) == self.run.ranks.size:
            return everyones[self.run.ranks.rank]
        weights = [each.get("weight", 1.0) for each in everyones]
        watch = everyones[0]["watch"]
        if watch:
            watch = {**watch, "window": merge_states([each["watch"]["window"] for each in everyones], weights)}
        return {"window": merge_states([each["window"] for each in everyones], weights), "watch": watch}

    def _log(self, batches: Batches, done: int, at: Position) -> None:
        run = self.run
        own = self.window.means()
        if done % run.config.log_every == 0:  # a last record in between leaves the window to whoever resumes
            self.window = Window()
        everyones = run.ranks.gather(own, "metrics")
        if any(each.keys() != own.keys() for each in everyones):
            raise RunError(f"step {done}: the ranks have other metrics: {[sorted(each) for each in everyones]}")
        weighted = list(zip(self.weights, everyones, strict=True))
        values = {name: sum(weight * each[name] for weight, each in weighted) / run.ranks.size for name in own}
        if bad := [name for name, value in values.items() if name.endswith("/loss") and not math.isfinite(value)]:
            raise RunError(f"step {done}, stage {at.stage.name}: {bad[0]} is not finite")
        images_per_sec = run.config.global_batch_size / values["step_seconds"]
        self.bad_files.report(batches.bad_files)
        extra = {"images_per_sec": images_per_sec, "bad_files": len(self.bad_files.known)}
        self.measured.update(values)
        self.record.write(done, at.stage.name, at.stage_step + 1, {**extra, **values})

    def _batches(self) -> Batches:
        config, ranks = self.run.config, self.run.ranks
        return Batches(
            self.run.source,
            seed=config.seed,
            global_batch_size=config.global_batch_size,
            places=ranks.slice_of(config.global_batch_size),
            position=self.found.position,
            threads=self.threads,
            prefetch=config.pipeline.prefetch,
            max_bad_fraction=config.max_bad_fraction,
            device="gpu:0" if tf.config.list_logical_devices("GPU") else None,
        )
