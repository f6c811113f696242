"""The metrics of a run, from metrics.jsonl, read line by line in bounded memory."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from hvdgan.pages.reading.thinning import Series
from hvdgan.pages.reading.untrusted import Folder
from hvdgan.pages.reading.waits import Waits

FILE = "metrics.jsonl"
MOST_METRICS = 100
"""number of metrics that are kept; those that come later are counted"""
LARGEST = 1e300
"""magnitude up to which numbers are drawn"""
_MOST_STAGES = 200
_WAITING = 40_000
_NO_METRICS = frozenset({"step", "stage", "stage_step"})


@dataclasses.dataclass
class Band:
    """Consecutive steps of one stage.

    Args:
        name: name of the stage.
        first: number of steps done before.
        last: number of steps done at the latest record.
    """

    name: str
    first: int
    last: int


@dataclasses.dataclass
class Metrics:
    """All metrics of a run, by name."""

    series: dict[str, Series] = dataclasses.field(default_factory=dict)
    """curves by the name of the metric"""
    bands: list[Band] = dataclasses.field(default_factory=list)
    """stages in the order in which they were run"""
    left_out: int = 0
    """values of metrics beyond MOST_METRICS, and values that are no numbers"""

    waits: Waits = dataclasses.field(default_factory=Waits)
    """rank of each record that has waited longest for its data"""

    @property
    def last_step(self) -> int:
        """Number of steps done at the latest record; 0 if there is none."""
        return max((band.last for band in self.bands), default=0)

    def steady(self, name: str) -> float | None:
        """Return Series.steady of a metric; None if the run does not have it."""
        series = self.series.get(name)
        return series.steady if series else None


def is_step(value: Any) -> TypeGuard[int]:
    """Check whether a value of a file can be a number of steps."""
    return type(value) is int and 0 <= value < 1 << 53


def is_number(value: Any) -> TypeGuard[float]:
    """Check whether a value of a file is a number that can be drawn; matplotlib scales no axis beyond LARGEST."""
    return type(value) in (int, float) and abs(value) < LARGEST


def read(folder: Folder) -> Metrics:
    """Read the metrics of a run folder; a file that is missing leaves them empty.

    Args:
        folder: run folder.
    """
    metrics = Metrics()
    waiting: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}  # records with the same names are read as columns
    size = 0
    for record in folder.records(FILE):
        if not is_step(record.get("step")):
            metrics.left_out += 1
            continue
        _note_stage(metrics, record)
        names = tuple(record)
        waiting.setdefault(names, []).append(tuple(record.values()))
        size += len(names)
        if size > _WAITING:
            _settle(metrics, waiting)
            size = 0
    _settle(metrics, waiting)
    if metrics.left_out:
        folder.remarks.append(
            f"{FILE}: values without a step, beyond {MOST_METRICS} metrics, or that are no numbers are left out "
            f"({metrics.left_out:,})"
        )
    return metrics


def add_evaluations(metrics: Metrics, evaluations: Sequence[dict[str, Any]]) -> None:
    """Add the curves of metrics that were measured after or beside the training alone, by hvdgan.evaluate.

    Args:
        metrics: metrics of the training.
        evaluations: records of evaluation.jsonl, the latest last; of several of one step the latest counts.
    """
    found: dict[str, dict[int, float]] = {}
    for record in evaluations:
        for name, value in record.items():
            if name.startswith("eval/") and name not in metrics.series and is_number(value):
                found.setdefault(name, {})[record["step"]] = value
    for name, values in list(found.items())[: max(0, MOST_METRICS - len(metrics.series))]:
        metrics.series[name] = Series(name)
        steps = sorted(values)
        metrics.series[name].add(np.array(steps, np.int64), np.array([values[step] for step in steps], np.float64))


def _note_stage(metrics: Metrics, record: dict[str, Any]) -> None:
    stage, step = record.get("stage"), record["step"]
    if not isinstance(stage, str):
        stage = ""
    band = metrics.bands[-1] if metrics.bands else None
    if band is not None and band.name == stage:
        if step > band.last:
            band.last = step
    elif len(metrics.bands) < _MOST_STAGES:
        before, done = band.last if band else 0, record.get("stage_step")
        first = step - done if is_step(done) and before <= step - done else before
        metrics.bands.append(Band(stage, first, max(step, first)))


def _settle(metrics: Metrics, waiting: dict[tuple[str, ...], list[tuple[Any, ...]]]) -> None:
    """Add the records that are waiting to the curves."""
    for names, rows in waiting.items():
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        steps = np.array(columns["step"], np.int64)
        if columns.keys() >= Waits.NAMES:
            metrics.waits.add(*(_numbers(columns[name])[0] for name in ("wait_rank", "wait_seconds_max")))
        for name, values in columns.items():
            if name in _NO_METRICS:
                continue
            numbers, good = _numbers(values)
            metrics.left_out += len(values) - int(good.sum())
            if not good.any():
                continue
            if name not in metrics.series:
                if len(metrics.series) >= MOST_METRICS:
                    metrics.left_out += int(good.sum())
                    continue
                metrics.series[name] = Series(name)
            metrics.series[name].add(steps[good], numbers[good])
    waiting.clear()


def _numbers(values: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return values as numbers, with NaN for null and for numbers out of range, and which of them are one of these."""
    kinds = set(map(type, values))
    good = np.ones(len(values), bool)
    if kinds <= {float}:
        return np.array(values, np.float64), good
    if not kinds <= {float, int, type(None)}:
        good = np.array([value is None or type(value) in (float, int) for value in values])
    return np.array([float(value) if _fits(value) else math.nan for value in values], np.float64), good


def _fits(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 1 << 1000)
