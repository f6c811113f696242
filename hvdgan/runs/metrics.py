"""The metrics of a run, from metrics.jsonl, read in bounded memory: of long curves each part keeps its extremes."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from hvdgan.runs.folder import Facts, Folder

FILE = "metrics.jsonl"
POINTS = 1000
"""largest number of points of a curve that is drawn"""
_KEPT, _PENDING = 2000, 16_000
PARTS = {
    "compute_seconds": "computing",
    "wait_seconds": "waiting for data",
    "reduce_seconds": "all-reduces (exchange, and waiting for slower ranks)",
}
"""parts of a step, whose smallest, median and largest time over the ranks are metrics, and what a rank does in them"""
OVER_RANKS = ("min", "median", "max")
OF_SPEED = frozenset(f"{part}_{how}" for part in PARTS for how in OVER_RANKS) | {
    *PARTS,
    "step_seconds",
    "between_seconds",
    "images_per_sec",
    "slowest_rank",
}
"""metrics that are about speed"""
_LARGEST = frozenset({"psnr", "ssim", "precision", "recall", "density", "coverage", "accuracy"})
_LARGEST_NAMES = frozenset({"inception_score", "modes", "mode_good"})
_COMPARED = ("features", "resize", "samples", "real_samples", "weights", "bins")


def mode_of(metric: str) -> Literal["min", "max"]:
    """Return "max" if a metric's largest value is the best, by the last word of its name; "min" if its smallest."""
    name = metric.rpartition("/")[2]
    return "max" if name in _LARGEST_NAMES or name.rpartition("_")[2] in _LARGEST else "min"


def thin(steps: np.ndarray, values: np.ndarray, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Thin a curve; the smallest and the largest value of each part of the steps stay, and so do both ends."""
    if (np.diff(steps) < 0).any():
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
    if len(steps) <= points:
        return steps, values
    parts = points // 2 - 1
    part = ((steps - steps[0]) / max(float(steps[-1]) - float(steps[0]), 1.0) * parts).astype(np.int64)
    begins = np.flatnonzero(np.diff(part, prepend=-1))
    counts = np.diff(np.append(begins, len(steps)))
    kept = [np.array([0, len(steps) - 1])]
    for extreme in (np.minimum, np.maximum):
        places = np.flatnonzero(values == np.repeat(extreme.reduceat(values, begins), counts))
        kept.append(places[np.diff(part[places], prepend=-1) > 0])  # the first of each part
    chosen = np.unique(np.concatenate(kept))
    return steps[chosen], values[chosen]


class Series:
    """The values of one metric, read in portions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        """number of finite values"""
        self.not_finite = 0
        """number of values that were null, which stands for NaN and infinity in JSON"""
        self._steps, self._values = np.empty(0, np.int64), np.empty(0)
        self._steady = [0, 0.0]

    @property
    def steady(self) -> float | None:
        """Mean of the values in whose records no graph was traced; None if it is not a number above 0."""
        return self._steady[1] / self._steady[0] if self._steady[1] > 0 else None

    def add(self, steps: np.ndarray, values: np.ndarray, *, are_steady: bool = True) -> None:
        """Add values, and thin the curve if it has become long."""
        good = np.isfinite(values)
        self.count += int(good.sum())
        self.not_finite += int((~good).sum())
        self._steps, self._values = np.append(self._steps, steps[good]), np.append(self._values, values[good])
        if are_steady:
            self._steady = [self._steady[0] + good.sum(), self._steady[1] + float(values[good].sum())]
        if len(self._values) > _PENDING:
            self._steps, self._values = thin(self._steps, self._values, _KEPT)

    def curve(self, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
        """Return the curve: steps in ascending order and their values, at most `points` of them."""
        return thin(self._steps, self._values, points)

    def best(self, mode: str) -> tuple[int, float]:
        """Return step and value of the smallest or, if the mode is max, of the largest value."""
        steps, values = self.curve()
        at = int(values.argmax() if mode == "max" else values.argmin())
        return int(steps[at]), float(values[at])

    @property
    def last(self) -> float:
        """Value of the latest step."""
        return float(self.curve()[1][-1])


@dataclasses.dataclass
class Band:
    """Consecutive steps of one stage: its name, and the numbers of steps done before it and at its latest record."""

    name: str
    first: int
    last: int


class Metrics:
    """All metrics of a run, by name."""

    def __init__(self, resumptions: Sequence[int] = ()) -> None:
        self.series: dict[str, Series] = {}
        """curves by the name of the metric"""
        self.bands: list[Band] = []
        """stages in the order in which they were run"""
        self.last_step = 0
        """number of steps done at the latest record"""
        self.clock = Series("seconds")
        """seconds of all steps, and of the work between them, until a step"""
        self.compared = ""
        """what the curves of add_evaluations() were measured with, if not all records were measured with the same"""
        self.left_out = 0
        """number of values that are no numbers, and of records without a step"""
        self.slowest: collections.Counter[int] = collections.Counter()
        """number of records in which each rank was the slowest"""
        self._resumed = collections.deque(resumptions)
        self._stage: Any = ...
        self._spent = (0, 0.0)

    def steady(self, name: str) -> float | None:
        """Return Series.steady of a metric; None if the run does not have it."""
        series = self.series.get(name)
        return series.steady if series else None

    @property
    def over_ranks(self) -> dict[str, tuple[float, ...]]:
        """Mean seconds of the parts of a step on the rank with the least, the median and the most; empty for one rank.

        They are means of records, so that the least and the most need not be those of one rank.
        """
        found = {part: tuple(self.steady(f"{part}_{how}") or 0.0 for how in OVER_RANKS) for part in PARTS}
        return {part: seconds for part, seconds in found.items() if any(seconds)}

    def add(self, records: Iterable[Facts]) -> None:
        """Add records in their order; in the first one of a start or of a stage graphs are traced."""
        kinds: dict[tuple[tuple[str, ...], bool], list[Facts]] = collections.defaultdict(list)
        for record in records:
            step, stage = record.get("step"), record.get("stage")
            if not isinstance(step, int):
                self.left_out += 1
                continue
            is_traced = stage != self._stage
            if is_traced:
                self._stage = stage
                first = max(self.last_step, step - record.get("stage_step", step))
                self.bands.append(Band(str(stage), first, first))
            while self._resumed and self._resumed[0] < step:
                self._resumed.popleft()
                is_traced = True
            self.last_step = self.bands[-1].last = max(self.last_step, step)
            kinds[tuple(record), not is_traced].append(record)
        times = [self._add_columns(names, rows, are_steady=are_steady) for (names, are_steady), rows in kinds.items()]
        if times:
            steps, each = map(np.concatenate, zip(*times, strict=True))
            order = np.argsort(steps, kind="stable")
            before, seconds = self._spent
            spent = seconds + np.cumsum(np.diff(steps[order], prepend=before).clip(0) * each[order])
            self.clock.add(steps[order], spent)
            self._spent = (int(steps.max()), float(spent[-1])) if len(steps) else self._spent

    def _add_columns(
        self, names: Sequence[str], rows: Sequence[Facts], *, are_steady: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add records with the same names; return their steps and the seconds of a step."""
        columns = dict(zip(names, zip(*(row.values() for row in rows), strict=True), strict=True))
        steps = np.array(columns["step"], np.int64)
        seconds = np.zeros(len(steps))
        measured = np.zeros(len(steps), bool)
        for name, values in columns.items():
            if name in ("step", "stage", "stage_step"):
                continue
            try:
                numbers = np.array(values, np.float64).reshape(steps.shape)  # null becomes NaN
            except (TypeError, ValueError):
                self.left_out += len(values)
                continue
            self.series.setdefault(name, Series(name)).add(steps, numbers, are_steady=are_steady)
            if name in ("step_seconds", "between_seconds"):
                seconds += np.nan_to_num(numbers)
                measured |= (name == "step_seconds") & (numbers > 0)
            if name == "slowest_rank" and are_steady:
                self.slowest.update(numbers[np.isfinite(numbers)].astype(int).tolist())
        return steps[measured], seconds[measured]

    def add_evaluations(self, evaluations: Sequence[Facts]) -> None:
        """Add the curves of metrics that hvdgan evaluate has measured, if all was measured as the latest was.

        If the run has measured such a metric itself, the name of the curve has the number of samples, too.
        """
        found: dict[str, dict[int, float]] = {}
        measured_with = [", ".join(f"{key} {each[key]}" for key in _COMPARED if key in each) for each in evaluations]
        if len(set(measured_with)) > 1:
            self.compared = measured_with[-1]
        for record, how in zip(evaluations, measured_with, strict=True):
            for name, value in record.items():
                if not (name.startswith("eval/") and how == measured_with[-1] and isinstance(value, float)):
                    continue
                shown, of_run = name, self.series.get(name)
                if of_run:
                    if value in of_run.curve()[1] or not isinstance(record.get("samples"), int):
                        continue
                    shown = f"{name}, {record['samples']:,} samples"
                found.setdefault(shown, {})[record["step"]] = value
        for name, values in found.items():
            self.series[name] = Series(name)
            self.series[name].add(np.array([*values], np.int64), np.array([*values.values()], np.float64))


def read(folder: Folder, resumptions: Sequence[int] = ()) -> Metrics:
    """Read the metrics of a run folder; a file that is missing leaves them empty."""
    metrics = Metrics(resumptions)
    for records in folder.portions(FILE):
        metrics.add(records)
    if metrics.left_out:
        folder.remarks.append(
            f"{FILE}: values that are no numbers or without a step are left out ({metrics.left_out:,})"
        )
    return metrics


def latest(folder: Folder) -> Facts:
    """Read the latest value of each name in the records of a run folder."""
    values: Facts = {}
    for record in folder.records(FILE):
        values |= record
    return values
