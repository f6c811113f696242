"""The metrics of a run, from metrics.jsonl, read line by line in bounded memory."""

import dataclasses
from typing import Any, TypeGuard

from hvdgan.pages.thinning import Series
from hvdgan.pages.untrusted import Folder

FILE = "metrics.jsonl"
MOST_METRICS = 100
"""number of metrics that are kept; those that come later are counted"""
LARGEST = 1e300
"""magnitude up to which numbers are drawn"""
_MOST_STAGES = 200
_SETTLE_EVERY = 2000
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

    @property
    def last_step(self) -> int:
        """Number of steps done at the latest record; 0 if there is none."""
        return max((band.last for band in self.bands), default=0)


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
    for number, record in enumerate(folder.records(FILE), 1):
        step = record.get("step")
        if is_step(step):
            _note_stage(metrics, record)
            _add(metrics, step, record)
        else:
            metrics.left_out += 1
        if number % _SETTLE_EVERY == 0:
            _settle(metrics)
    _settle(metrics)
    if metrics.left_out:
        folder.remarks.append(
            f"{FILE}: values without a step, beyond {MOST_METRICS} metrics, or that are no numbers are left out "
            f"({metrics.left_out:,})"
        )
    return metrics


def _note_stage(metrics: Metrics, record: dict[str, Any]) -> None:
    stage, step, done = record.get("stage"), record["step"], record.get("stage_step")
    if not isinstance(stage, str):
        stage = ""
    if metrics.bands and metrics.bands[-1].name == stage:
        metrics.bands[-1].last = max(metrics.bands[-1].last, step)
    elif len(metrics.bands) < _MOST_STAGES:
        before = metrics.bands[-1].last if metrics.bands else 0
        first = step - done if is_step(done) and before <= step - done else before
        metrics.bands.append(Band(stage, first, max(step, first)))


def _add(metrics: Metrics, step: int, record: dict[str, Any]) -> None:
    series = metrics.series
    for name, value in record.items():
        if name in _NO_METRICS:
            continue
        kind = type(value)
        if kind is float or value is None or (kind is int and abs(value) < 1 << 1000):
            one = series.get(name)
            if one is None:
                if len(series) >= MOST_METRICS:
                    metrics.left_out += 1
                    continue
                one = series[name] = Series(name)
            one.steps.append(step)
            one.values.append(float("nan") if value is None else value)
        else:
            metrics.left_out += 1


def _settle(metrics: Metrics) -> None:
    for series in metrics.series.values():
        series.settle()
