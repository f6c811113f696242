"""The metrics of a run, from metrics.jsonl, read line by line in bounded memory."""

import bisect
import collections
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from hvdgan.pages.reading.thinning import Series
from hvdgan.pages.reading.untrusted import Folder, plain
from hvdgan.pages.reading.waits import Waits

FILE = "metrics.jsonl"
MOST_METRICS = 100
"""number of metrics that are kept; those that come later are counted"""
LARGEST = 1e300
"""magnitude up to which numbers are drawn"""
_MOST_STAGES = 200
_WAITING = 40_000
"""values of records that are read as columns at once, about"""
_NO_METRICS = frozenset({"step", "stage", "stage_step"})
_COMPARED = ("features", "resize", "samples", "real_samples", "weights", "bins")
Waiting = dict[tuple[tuple[str, ...], bool], list[tuple[Any, ...]]]
"""records that are read as columns: their values, by the names of the metrics and whether they are steady"""


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
    last_step: int = 0
    """number of steps done at the latest record"""
    stage: Any = ...
    """stage of the latest record, as the file has it; ...: there is none yet"""
    left_out: int = 0
    """values of metrics beyond MOST_METRICS, and values that are no numbers"""
    compared: str = ""
    """what the curves of add_evaluations() were measured with, if other records were measured with something else"""

    waits: Waits = dataclasses.field(default_factory=Waits)
    """rank of each record that has waited longest for its data"""

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


def read(folder: Folder, resumptions: Sequence[int] = ()) -> Metrics:
    """Read the metrics of a run folder; a file that is missing leaves them empty."""
    metrics, resumed = Metrics(), collections.deque(resumptions)
    waiting: Waiting = collections.defaultdict(list)
    for records in folder.records(FILE):
        for (names, _), group in itertools.groupby(records, key=_kind):
            _add(metrics, names, list(group), resumed, waiting)
        if sum(len(names) * len(rows) for (names, _), rows in waiting.items()) > _WAITING:
            _add_waiting(metrics, waiting)
    _add_waiting(metrics, waiting)
    _end_stage(metrics)
    if metrics.left_out:
        folder.remarks.append(
            f"{FILE}: values without a step, beyond {MOST_METRICS} metrics, or that are no numbers are left out "
            f"({metrics.left_out:,})"
        )
    return metrics


def _kind(record: dict[str, Any]) -> tuple[tuple[str, ...], Any]:
    """What consecutive records share: the names of their values, and their stage."""
    return tuple(record), record.get("stage")


def _add(
    metrics: Metrics,
    names: tuple[str, ...],
    records: list[dict[str, Any]],
    resumed: collections.deque[int],
    waiting: Waiting,
) -> None:
    """Add consecutive records of one kind to those that are waiting; the first after a start or of a stage apart."""
    good = [record for record in records if is_step(record.get("step"))]
    metrics.left_out += len(records) - len(good)
    if not good:
        return
    steps = [record["step"] for record in good]
    traced: set[int] = set()
    if good[0].get("stage") != metrics.stage:
        _begin_stage(metrics, good[0])
        traced.add(0)
    latest = max(steps)
    while resumed and resumed[0] < latest:
        traced.add(bisect.bisect_right(steps, resumed.popleft(), hi=len(steps) - 1))
    metrics.last_step = max(metrics.last_step, latest)
    rows = [tuple(record.values()) for record in good]
    waiting[names, False] += [rows[place] for place in traced]
    waiting[names, True] += [row for place, row in enumerate(rows) if place not in traced] if traced else rows


def add_evaluations(metrics: Metrics, evaluations: Sequence[dict[str, Any]]) -> None:
    """Add the curves of metrics that were measured after or beside the training alone, by hvdgan.evaluate."""
    found: dict[str, dict[int, float]] = {}
    measured_with = [", ".join(f"{what} {each[what]}" for what in _COMPARED if what in each) for each in evaluations]
    if len(set(measured_with)) > 1:
        metrics.compared = plain(measured_with[-1])
    for record, how in zip(evaluations, measured_with, strict=True):
        for name, value in record.items():
            is_new = name.startswith("eval/") and name not in metrics.series
            if is_new and how == measured_with[-1] and is_number(value):
                found.setdefault(name, {})[record["step"]] = value
    for name, values in list(found.items())[: max(0, MOST_METRICS - len(metrics.series))]:
        metrics.series[name] = Series(name)
        steps = sorted(values)
        metrics.series[name].add(np.array(steps, np.int64), np.array([values[step] for step in steps], np.float64))


def _begin_stage(metrics: Metrics, record: dict[str, Any]) -> None:
    """Note the stage of a record that is the first of it."""
    _end_stage(metrics)
    metrics.stage, step, done = record.get("stage"), record["step"], record.get("stage_step")
    if len(metrics.bands) < _MOST_STAGES:
        before = metrics.last_step
        first = step - done if is_step(done) and before <= step - done else before
        metrics.bands.append(Band(metrics.stage if isinstance(metrics.stage, str) else "", first, max(step, first)))


def _end_stage(metrics: Metrics) -> None:
    """Note the latest step of the stage whose records have been read; those of further stages are not bands."""
    if metrics.bands and len(metrics.bands) < _MOST_STAGES:
        metrics.bands[-1].last = max(metrics.bands[-1].last, metrics.last_step)


def _add_waiting(metrics: Metrics, waiting: Waiting) -> None:
    """Add the records that are waiting to the curves."""
    for (names, are_steady), rows in waiting.items():
        if not rows:
            continue
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
            metrics.series[name].add(steps[good], numbers[good], are_steady=are_steady)
    waiting.clear()


def _numbers(values: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return values as numbers, with NaN for null and for numbers out of range, and which of them are one of these."""
    kinds = set(map(type, values))
    good = np.ones(len(values), bool)
    if kinds <= {float, int}:
        with contextlib.suppress(OverflowError):
            return np.array(values, np.float64), good
    if not kinds <= {float, int, type(None)}:
        good = np.array([value is None or type(value) in (float, int) for value in values])
    return np.array([float(value) if _fits(value) else math.nan for value in values], np.float64), good


def _fits(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 1 << 1000)
