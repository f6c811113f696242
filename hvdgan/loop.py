"""From a built run to its end: restore, broadcast once, then the schedule step by step."""

import math
import os
import time

import keras
import numpy as np
import tensorflow as tf

from hvdgan import __version__
from hvdgan.data import Batches, refuse_if_too_many
from hvdgan.distributed import collective_failure, cores_of_rank
from hvdgan.errors import RunError
from hvdgan.metrics import Record, Window
from hvdgan.resume import claim, save
from hvdgan.run import Run, describe
from hvdgan.samples import Sampler, save_grid
from hvdgan.step import StageStep


def train(run: Run, resume: str) -> None:
    """Train to the last step of the schedule or of --max-steps, from where the run folder or a checkpoint stopped.

    Args:
        run: from hvdgan.run.build.
        resume: "auto", "never" or a checkpoint's folder.

    Raises:
        UserError: the run folder cannot be used as resume says.
        RunError: a checkpoint cannot be read or written, the data fails, or the training diverged.
    """
    start_step = _restore(run, resume)
    try:
        record = Record(run.run_dir, is_root=run.ranks.is_root, start_step=start_step, total_steps=run.last_step)
    except OSError as error:
        raise _as_run_error(run, error) from error
    try:
        _announce(run, record, start_step)
        if start_step < run.last_step:
            _Loop(run, record).steps(start_step)
    except (RunError, OSError, tf.errors.OpError) as error:
        failure = _as_run_error(run, error)
        record.say(f"stopped: {failure}")
        if failure is error:
            raise
        raise failure from error
    finally:
        record.close()


def _restore(run: Run, resume: str) -> int:
    """Restore on rank 0, and give all ranks what it has; returns the steps done."""
    ranks, state = run.ranks, run.state
    statistics: list[np.ndarray | None] = [None]

    def work() -> dict[str, int]:
        step, statistics[0] = claim(run, resume)
        return {"step": step, "ranks": 1 if statistics[0] is None else len(statistics[0])}

    restored = ranks.from_root(work, "restore")
    ranks.broadcast(list(state.tensors().values()))
    if restored["ranks"] == ranks.size > 1:
        # With as many ranks as before each goes on with its own; with more or fewer all go on with the means.
        mine = state.read_statistics()
        empty = np.zeros((ranks.size, len(mine)), np.float32)
        state.write_statistics(ranks.broadcast_array(empty if statistics[0] is None else statistics[0])[ranks.rank])
    return restored["step"]


def _as_run_error(run: Run, error: Exception) -> Exception:
    """The one line that an error comes to, where it is one of the known kinds."""
    if isinstance(error, OSError):
        return RunError(f"{run.run_dir} cannot be written: {error}; free space or rights, then resume")
    if isinstance(error, tf.errors.OpError):
        return collective_failure(error) or error
    return error


def _announce(run: Run, record: Record, start_step: int) -> None:
    hosts = run.ranks.gather(os.uname().nodename, "hosts")
    device = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    record.say(
        f"hvdgan {__version__}: {run.ranks.size} rank(s) on {len(set(hosts))} host(s), launcher {run.ranks.launcher}, "
        f"{device}, TensorFlow {tf.__version__}, Keras {keras.__version__}"
    )
    record.say(describe(run))
    record.say(f"run folder {run.run_dir}")
    if start_step >= run.last_step:
        limit = "--max-steps" if run.last_step < run.schedule.total_steps else "the steps of the last stage"
        record.say(f"nothing to do: step {start_step} of {run.last_step} is reached; raise {limit} to go on")
    elif start_step:
        record.say(f"going on at step {start_step} of {run.last_step}")


class _Loop:
    """The steps of a run and what happens between them."""

    def __init__(self, run: Run, record: Record) -> None:
        self.run = run
        self.record = record
        self.window = Window()
        self.bad_files: dict[str, str] = {}
        self.sampler = Sampler(run.recipe, run.state, run.source, run.config.seed) if run.ranks.is_root else None

    def steps(self, start_step: int) -> None:
        """All steps from start_step to the run's last."""
        run = self.run
        if self.sampler:
            save_grid(run.run_dir / "samples" / "real.png", self.sampler.real)
        index = -1
        with self._batches(start_step) as batches:
            for step in range(start_step, run.last_step):
                at = run.schedule.at(step)
                if index != at.index:
                    index = at.index
                    run.ranks.agree({"stage": at.stage.name, "step": step}, "the stage")
                    if at.stage.reset_optimizers and at.stage_step == 0:
                        run.state.reset_optimizers(run.recipe, at.stage.owns)
                self._step(run.steps[index], batches, step, at.stage_step)
                self.record.advance(at.stage.name)
                self._between(batches, step + 1)
        self.record.say(f"done: {run.last_step} steps; samples in {run.run_dir / 'samples'}")

    def _step(self, stage_step: StageStep, batches: Batches, step: int, step_of_stage: int) -> None:
        begin = time.perf_counter()
        data = next(batches)
        arrived = time.perf_counter()
        metrics, finite = stage_step(step, step_of_stage, data)
        # Reading the verdict waits for the step to end, which makes step_seconds true.
        bad = [update for update, verdict in finite.items() if not verdict.numpy()]
        if bad:
            raise RunError(
                f"step {step}, stage {stage_step.stage.name}, update {bad[0]}: the gradients are not finite; no rank "
                "has applied them; lower the learning rate, or look at the data; the last checkpoint is intact"
            )
        end = time.perf_counter()
        self.window.add(metrics, wait_seconds=arrived - begin, step_seconds=end - begin)

    def _between(self, batches: Batches, done: int) -> None:
        """Log, sample and save where it is time; every rank takes part, and rank 0 alone writes."""
        run, config = self.run, self.run.config
        sample, write = self._is_time(done, config.sample_every), self._is_time(done, config.checkpoint_every)
        if self._is_time(done, config.log_every):
            self._log(batches, done)
        if not (sample or write):
            return
        # BatchNorm's statistics are each rank's own; whoever looks at the networks sees their means.
        statistics = run.ranks.stack(run.state.read_statistics())
        if sample and self.sampler:
            with run.state.with_statistics(statistics):
                save_grid(run.run_dir / "samples" / f"step-{done:08d}.png", self.sampler())
        if write:
            run.ranks.from_root(lambda: save(run, done, statistics), "save")

    def _is_time(self, done: int, every: int) -> bool:
        return done == self.run.last_step or (every > 0 and done % every == 0)

    def _log(self, batches: Batches, done: int) -> None:
        run = self.run
        own, self.window = self.window.means(), Window()
        everyones = run.ranks.gather(own, "metrics")
        if any(each.keys() != own.keys() for each in everyones):
            raise RunError(f"step {done}: the ranks have other metrics: {[sorted(each) for each in everyones]}")
        values = {name: sum(each[name] for each in everyones) / run.ranks.size for name in own}
        if bad := [name for name, value in values.items() if name.endswith("/loss") and not math.isfinite(value)]:
            raise RunError(f"step {done}, stage {run.schedule.at(done - 1).stage.name}: {bad[0]} is not finite")
        images_per_sec = run.config.global_batch_size / values["step_seconds"]
        self._report_bad_files(batches)
        at = run.schedule.at(done - 1)
        extra = {"images_per_sec": images_per_sec, "bad_files": len(self.bad_files)}
        self.record.write(done, at.stage.name, at.stage_step + 1, {**extra, **values})

    def _report_bad_files(self, batches: Batches) -> None:
        """Name the broken files that any rank has met; stop on every rank alike when they are too many."""
        run = self.run
        for met in run.ranks.gather([list(bad) for bad in batches.bad_files], "bad files"):
            for name, reason in met:
                if name not in self.bad_files:
                    self.record.say(f"skipped {name}: {reason}")
                self.bad_files[name] = reason
        total = len(run.source) + len(run.source.bad_files)
        refuse_if_too_many(
            RunError,
            name=run.source.name,
            bad_files=list(self.bad_files.items()),
            total=total,
            max_bad_fraction=run.config.max_bad_fraction,
        )

    def _batches(self, start_step: int) -> Batches:
        config, ranks = self.run.config, self.run.ranks
        return Batches(
            self.run.source,
            seed=config.seed,
            global_batch_size=config.global_batch_size,
            rank=ranks.rank,
            size=ranks.size,
            start_step=start_step,
            threads=config.pipeline.threads or cores_of_rank(ranks),
            prefetch=config.pipeline.prefetch,
            max_bad_fraction=config.max_bad_fraction,
        )
