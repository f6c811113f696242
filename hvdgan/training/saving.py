"""Saves a run: checkpoints on the disk and, in an elastic run, commits in memory."""

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from hvdgan.checkpoints.checkpoint import versions
from hvdgan.checkpoints.files import Snapshot
from hvdgan.checkpoints.saver import Best, Saver
from hvdgan.checkpoints.tensor_names import named_of_ranks
from hvdgan.errors import shared_errors
from hvdgan.training.build import Run
from hvdgan.training.changes import named_steps
from hvdgan.training.rank_state import Everyones
from hvdgan.training.record import Record
from hvdgan.training.resume_point import Commits, ResumePoint
from hvdgan.training.train_state import copies_of


class Saving:
    """Takes snapshots of a run, and follows its best metric."""

    def __init__(
        self,
        run: Run,
        resume_point: ResumePoint,
        record: Record,
        commits: Commits,
        executor: Executor,
        wait: Callable[[Future[Any]], Any],
    ) -> None:
        self._run = run
        self._resume_point = resume_point
        self._commits = commits
        config = run.config
        self._best = Best.of(config.best_metric, config.best_mode, resume_point.progress.get("best"))
        self._say = record.say
        self._warned = False
        self._measured: dict[str, float] = dict(resume_point.progress.get("measured", {}))
        self._evaluated: tuple[int, float] | None = None
        """number of steps done at the last evaluation that measured the best metric, and its value"""
        self.saver = Saver(run.checkpoints, config.keep, executor, wait, record.say, record.tell)

    def add(self, values: dict[str, float]) -> None:
        """Note means of training since the last checkpoint; the next checkpoint counts with the last of each."""
        self._measured.update(values)

    def add_evaluation(self, done: int, values: dict[str, float]) -> None:
        """Note the figures of an evaluation, which count for a checkpoint of the same step; every rank calls this."""
        if self._best is not None and self._best.metric in values:
            mine = values[self._best.metric]
            # Its last bits may differ between hosts, and all ranks must agree on which checkpoint is the best.
            value = shared_errors.from_root(lambda: mine, self._run.ranks, "best metric")
            self._evaluated = done, value
            self._warn_of_nan(done, value)

    def has_new_best(self, done: int) -> bool:
        """Check whether an evaluation after `done` steps has given the best value so far; the same on every rank."""
        return self._best is not None and self._best.after(done, self._evaluated_at(done)) != self._best

    def save(self, done: int, everyones: Everyones, progress: dict[str, Any]) -> None:
        """Copy the run to memory, from where a thread writes it; every rank calls this."""
        if self._best:
            value = self._evaluated_at(done)
            if value is None:  # else add_evaluation() has warned
                value = self._measured.get(self._best.metric)
                self._warn_of_nan(done, value)
            self._best = self._best.after(done, value)
        self._measured, self._evaluated = {}, None
        if self._run.ranks.is_root:
            begin = time.perf_counter()
            self.saver.save(self._snapshot(done, everyones, progress), begin)

    def commit(self, done: int, everyones: Everyones, progress: dict[str, Any]) -> None:
        """Copy the run to the memory of every rank; every rank calls this. The arguments are those of save()."""
        progress = {**progress, "measured": self._measured}
        self._commits.take(self._snapshot(done, everyones, progress))

    def finish(self) -> None:
        """Wait until the last checkpoint is written; every rank calls this."""
        shared_errors.from_root(self.saver.finish, self._run.ranks, "last checkpoint")

    def _warn_of_nan(self, done: int, value: float | None) -> None:
        """Log once that the best metric is not a number as long as it has never been one."""
        if self._best is not None and self._best.value is None and value != value and not self._warned:
            self._warned = True
            self._say(
                f"warning: step {done}: --best-metric {self._best.metric} is NaN; as long as it is, no checkpoint is "
                "kept as the best"
            )

    def _evaluated_at(self, done: int) -> float | None:
        """The best metric as an evaluation after `done` steps has measured it; None if none has."""
        return self._evaluated[1] if self._evaluated is not None and self._evaluated[0] == done else None

    def _snapshot(self, done: int, everyones: Everyones, progress: dict[str, Any]) -> Snapshot:
        progress = {**progress, "best": self._best and dataclasses.asdict(self._best)}
        return snapshot(self._run, self._resume_point, done, everyones, progress)


def snapshot(
    run: Run,
    resume_point: ResumePoint,
    step: int,
    everyones: Everyones,
    progress: dict[str, Any],
    saved_by: int | None = None,
) -> Snapshot:
    """Copy what a checkpoint holds; `everyones`, of `saved_by` ranks, is what RankState.gather() has returned."""
    at = run.schedule.at(max(step - 1, 0))
    facts = {
        "run_id": resume_point.run_id,
        "stage": at.stage.name,
        "stage_index": at.index,
        "stage_step": at.stage_step + 1,
        "stages": named_steps(run.schedule.stages),
        "samples_seen": resume_point.samples_seen(step, run.config.global_batch_size),
        "data": {
            "source": run.source.name,
            "fingerprint": run.source.fingerprint,
            "stamps": run.stamps,
            "num_images": len(run.source),
            "spec": run.recipe.data.to_json(),
        },
        "code": dict(run.code),
        "frozen": dict(run.frozen),
        "seed": run.config.seed,
        "ranks": saved_by or run.ranks.size,
        "config": run.settings(),
        "best": progress.get("best"),
        "progress": progress,
        "versions": versions(),
    }
    one = {name: each for name, each in run.state.tensors().items() if name not in run.rank_state.local}
    values = copies_of(one) | run.rank_state.means(everyones) | named_of_ranks(everyones)
    return Snapshot(step, values, facts)
