"""Runs the evaluations that are due during training, and hands their figures to all that use them."""

from collections.abc import Callable
from typing import Any

from hvdgan.evaluation.of_run import weights_facts
from hvdgan.evaluation.results import append, record_of
from hvdgan.recipe.schedule import Position
from hvdgan.training.observations import Observations
from hvdgan.training.record import Record
from hvdgan.training.resume_point import ResumePoint
from hvdgan.training.run import Run


class Evaluations:
    """Evaluates held-out images, and compares generated with real samples. Every rank calls it; rank 0 writes.

    Args:
        run: run, built and restored.
        resume_point: place from which the run has resumed.
        record: record of the run.
        observations: receives the figures, on which a plateau may end a stage.
        add: function that receives the number of steps done and the figures, one of which may be the best metric.
    """

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
        """Evaluate after `done` steps.

        Args:
            done: number of steps done.
            at: position of the last step.

        Raises:
            RunError: on every rank, if no held-out image can be read, or a generated sample is not finite.
        """
        run = self._run
        if run.evaluator:
            values = run.evaluator()
            self._observations.report(run.evaluator.bad_files)
            self._note(done, at, values, "held out")
        if run.comparison:
            values = run.comparison(self._record.say)
            self._observations.report(run.comparison.bad_files)
            self._note(done, at, values, "generated")
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
