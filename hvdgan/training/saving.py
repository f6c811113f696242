"""Saves a run: checkpoints on the disk and, in an elastic run, commits in memory; from either it resumes at a point."""

import dataclasses
import json
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from hvdgan.checkpoints import files
from hvdgan.checkpoints.files import Snapshot
from hvdgan.checkpoints.tensor_names import named_of_ranks
from hvdgan.distributed.backend import versions
from hvdgan.errors import RunError, shared_errors
from hvdgan.files.lock import Lock
from hvdgan.runs.events import Checkpoint
from hvdgan.runs.metrics import mode_of
from hvdgan.settings.evaluation import PLAIN_MEASURE
from hvdgan.training.build import Run
from hvdgan.training.changes import named_steps
from hvdgan.training.page import Page
from hvdgan.training.rank_state import Everyones
from hvdgan.training.record import Record
from hvdgan.training.train_state import copies_of


@dataclasses.dataclass(frozen=True)
class ResumePoint:
    """The point from which a run resumes; step 0 in a new run."""

    step: int = 0
    position: int = 0
    """number of samples seen, which is the position of the next one in the order of all samples"""
    run_id: str = ""
    saved_by: int = 0
    """number of ranks that the run had; 0 if it is new"""
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)
    """state of the loop, as it was given to saving.snapshot()"""
    remarks: list[str] = dataclasses.field(default_factory=list)
    """lines to log"""
    lock: Lock | None = None
    """lock of the run folder; None on the ranks that do not write"""
    initial: dict[str, Any] = dataclasses.field(default_factory=dict)
    """the files of the weights with which networks began, by network, for the manifest"""
    recovered: bool = False
    """whether the run resumes from a commit of an elastic run"""

    @staticmethod
    def of(snapshot: Snapshot, progress: dict[str, Any], *, recovered: bool = False) -> "ResumePoint":
        """Where a snapshot was taken, with what a run can use of its progress."""
        position, run_id, saved_by = (snapshot.facts[name] for name in ("samples_seen", "run_id", "ranks"))
        initial = snapshot.facts.get("initial", {})
        return ResumePoint(snapshot.step, position, run_id, saved_by, progress, initial=initial, recovered=recovered)

    def samples_seen(self, done: int, global_batch_size: int) -> int:
        """Number of samples seen after `done` steps of the run."""
        return self.position + (done - self.step) * global_batch_size


class HostsChanged(Exception):
    """The ranks are about to change, and nothing is lost."""


class Commits:
    """The last commit of this rank; it outlives the set of ranks that made it.

    It is complete on every rank, with the values of all ranks, so that any remaining rank can restore the run.
    `every`: steps between two commits; 0: none, because the run is not elastic. Every rank asks `hosts_changed`.
    """

    def __init__(self, every: int = 0, hosts_changed: Callable[[], bool] = lambda: False) -> None:
        self.every = every
        self.last: Snapshot | None = None
        self._hosts_changed = hosts_changed

    def take(self, snapshot: Snapshot) -> None:
        """Keep a snapshot that every rank has taken after the same step."""
        # A copy through JSON, so that later changes of the facts do not reach it.
        self.last = dataclasses.replace(snapshot, facts=json.loads(json.dumps(snapshot.facts)))

    def leave_if_hosts_changed(self) -> None:
        """Leave the loop by HostsChanged if other ranks are to take part; every rank calls this after a commit."""
        if self._hosts_changed():
            raise HostsChanged


@dataclasses.dataclass(frozen=True)
class Best:
    """The best checkpoint so far, by a metric."""

    metric: str  # its name in metrics.jsonl
    mode: str  # min if lower is better, max if higher is
    value: float | None = None  # the metric at the best step; None before the first measurement
    step: int | None = None

    @staticmethod
    def of(metric: str | None, mode: str | None, saved: dict[str, Any] | None) -> "Best | None":
        """Return the best so far from a checkpoint's manifest, or an empty one; None if there is no metric."""
        if metric is None:
            return None
        mode = mode or mode_of(metric)
        same = saved is not None and (saved["metric"], saved["mode"]) == (metric, mode)
        return Best(**saved) if same and saved else Best(metric, mode)

    def after(self, step: int, value: float | None) -> "Best":
        """Return the best after a checkpoint with this value was added; None: the metric was not measured."""
        if value is None or value != value:
            return self
        better = self.value is None or (value < self.value if self.mode == "min" else value > self.value)
        return dataclasses.replace(self, value=value, step=step) if better else self


class Saving:
    """Takes snapshots of a run, which a thread of rank 0 writes one at a time, and follows the run's best metric.

    A failure to write does not end the run: it is logged, and the next checkpoint is another try.
    """

    def __init__(
        self,
        run: Run,
        resume_point: ResumePoint,
        record: Record,
        commits: Commits,
        page: Page,
        executor: Executor,
        wait: Callable[[Future[Any]], Any],
    ) -> None:
        self._run, self._resume_point, self._record, self._commits = run, resume_point, record, commits
        config, progress = run.config, resume_point.progress
        self._page = page
        is_plain = run.comparison and config.evaluation.eval_features == "none"
        metric = config.best_metric or (PLAIN_MEASURE if is_plain else None)
        self._best = Best.of(metric, config.best_metric and config.best_mode, progress.get("best"))
        self._warned = False
        self._measured: dict[str, float] = dict(progress.get("measured", {}))
        self._evaluated: tuple[int, float] | None = None
        """number of steps done at the last evaluation that measured the best metric, and its value"""
        self._executor, self._wait = executor, wait
        self._writing: Future[tuple[Checkpoint, list[str]]] | None = None
        self._failure: RunError | None = None
        """why the last write has failed"""

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
        """Copy the run to memory, from where a thread writes it after the previous one; every rank calls this."""
        if self._best:
            value = self._evaluated_at(done)
            if value is None:  # else add_evaluation() has warned
                value = self._measured.get(self._best.metric)
                self._warn_of_nan(done, value)
            self._best = self._best.after(done, value)
        self._measured, self._evaluated = {}, None
        if not self._run.ranks.is_root:
            return
        begin = time.perf_counter()
        taken = self._snapshot(done, everyones, progress)
        if self._writing and not self._writing.done():
            self._record.say(
                f"step {done}: the run waits for the previous checkpoint to be written; consider a larger "
                "--checkpoint-every, or a larger --eval-every if --best-metric saves so often"
            )
        self.report(wait=True)
        self._writing = self._executor.submit(self._write, taken, time.perf_counter() - begin)

    def commit(self, done: int, everyones: Everyones, progress: dict[str, Any]) -> None:
        """Copy the run to the memory of every rank; every rank calls this. The arguments are those of save()."""
        progress = {**progress, "measured": self._measured}
        self._commits.take(self._snapshot(done, everyones, progress))

    def report(self, *, wait: bool = False) -> None:
        """If the last write has ended, renew the page of the run, or log that it has failed; once."""
        if self._writing and (wait or self._writing.done()):
            self.settle()
            if self._failure:
                text = f"warning: {self._failure}; the run continues, and the next checkpoint is another try"
                self._record.say(text)
            elif failure := self._page.renew():
                self._record.say(f"warning: {failure}; the run continues without a new page")

    def settle(self) -> None:
        """Wait for the last write, and log which old checkpoints it could not delete; does not raise."""
        if self._writing is None:
            return
        writing, self._writing, self._failure = self._writing, None, None
        try:
            written, unremoved = self._wait(writing)
        except RunError as error:
            self._failure = error
        else:
            self._record.tell(written)
            for line in unremoved:
                self._record.say(f"warning: {line}")

    def finish(self) -> None:
        """Wait until the last checkpoint is written, or raise why it could not be; every rank calls this."""

        def work() -> None:
            self.settle()
            if self._failure:
                raise self._failure

        shared_errors.from_root(work, self._run.ranks, "last checkpoint")

    def _write(self, taken: Snapshot, waited: float) -> tuple[Checkpoint, list[str]]:
        begin, folder = time.perf_counter(), self._run.checkpoints
        try:
            files.write(folder, taken)
        except RunError:
            raise
        except Exception as error:
            raise RunError(f"checkpoint of step {taken.step} cannot be written: {error!r}") from error
        written = Checkpoint(step=taken.step, waited=waited, written=time.perf_counter() - begin)
        try:
            return written, files.prune(folder, taken, self._run.config.keep)
        except Exception as error:  # the new checkpoint is complete
            return written, [f"old checkpoints cannot be removed: {error!r}; the next save tries again"]

    def _warn_of_nan(self, done: int, value: float | None) -> None:
        """Log once that the best metric is not a number as long as it has never been one."""
        if self._best is not None and self._best.value is None and value != value and not self._warned:
            self._warned = True
            self._record.say(
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
    at = run.plan.at(max(step - 1, 0))
    facts = {
        "run_id": resume_point.run_id,
        "stage": at.stage.name,
        "stage_index": at.index,
        "stage_step": at.stage_step + 1,
        "stages": named_steps(run.plan.stages),
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
        "initial": resume_point.initial,
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
