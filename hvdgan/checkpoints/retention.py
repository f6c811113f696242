"""Deletes old checkpoints, and keeps the newest, the best and the last of each stage."""

import dataclasses
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hvdgan.checkpoints import checkpoint, files
from hvdgan.checkpoints.direction import mode_of
from hvdgan.cli.errors import RunError, UserError


@dataclasses.dataclass(frozen=True)
class Best:
    """The best checkpoint so far, by a metric.

    Args:
        metric: name of the metric in metrics.jsonl.
        mode: min if lower is better, max if higher is.
        value: metric at the best step; None before the first measurement.
        step: step of the best checkpoint; None before the first measurement.
    """

    metric: str
    mode: str
    value: float | None = None
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


def check_best_metric(metric: str | None, names: Collection[str]) -> None:
    """Check that a run has the metric that --best-metric names.

    Args:
        metric: value of --best-metric; None: no metric is followed.
        names: names of the run's metrics.

    Raises:
        UserError: the run has no such metric.
    """
    if metric is not None and metric not in names:
        raise UserError(f"--best-metric {metric}: the run has {', '.join(sorted(names))}")


@dataclasses.dataclass(frozen=True)
class Retention:
    """Deletes checkpoints of this run that need not stay, and never those of another run.

    Args:
        keep: number of newest checkpoints to keep; 0: all.
    """

    keep: int

    def prune(self, folder: Path, newest: checkpoint.Snapshot) -> list[str]:
        """Delete old checkpoints of the run that wrote `newest`.

        Args:
            folder: path of RUN_DIR/checkpoints.
            newest: snapshot just written; its facts identify the run and the best step.

        Returns:
            One message for each checkpoint that could not be deleted; the next save tries again.
        """
        if not self.keep:
            return []
        mine = [(path, manifest) for path, manifest in _manifests(folder) if _is_of(manifest, newest.facts)]
        mine.sort(key=lambda each: each[1]["step"])
        stay = {manifest["step"] for _, manifest in mine[-self.keep :]}
        stay |= set({manifest["stage_index"]: manifest["step"] for _, manifest in mine}.values())  # the last of each
        # The best by the newest, or by an older one if the best could not be written.
        there = {manifest["step"] for _, manifest in mine}
        bests = [(manifest.get("best") or {}).get("step") for _, manifest in reversed(mine)]
        stay |= set([step for step in bests if step in there][:1])
        failures = []
        for path, manifest in mine:
            if manifest["step"] not in stay and manifest["step"] < newest.step:
                doomed = path.with_name(f".{path.name}.deleted")
                try:
                    path.rename(doomed)  # atomic, so that no reader finds half a checkpoint
                    shutil.rmtree(doomed)  # checkpoint.write() deletes what a failure leaves here
                except OSError as error:
                    failures.append(f"old checkpoint {path} cannot be removed: {error}; the next save tries again")
        return failures


def _manifests(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for path in files.newest_first(folder):
        try:
            found.append((path, files.read_manifest(path)))
        except RunError:
            continue  # a folder without a readable manifest may not be of this run
    return found


def run_id_of(folder: Path, manifest: dict[str, Any]) -> str:
    """Return the id of the run that wrote a checkpoint.

    Elastic runs of older versions wrote no id after they lost rank 0; their earlier checkpoints have it.

    Args:
        folder: path of RUN_DIR/checkpoints.
        manifest: manifest of the checkpoint.

    Returns:
        The id; empty if no checkpoint of the run has one.
    """
    own: str = manifest.get("run_id", "")
    others = (other["run_id"] for _, other in _manifests(folder) if other.get("run_id") and _same_run(other, manifest))
    return own or next(others, "")


def _is_of(manifest: dict[str, Any], facts: dict[str, Any]) -> bool:
    if "stage_index" not in manifest:
        return False
    run_id = manifest.get("run_id")
    return _same_run(manifest, facts) if run_id == "" else run_id == facts["run_id"]


def _same_run(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Compare what never changes during a run: seed, recipe and data."""

    def kept(facts: dict[str, Any]) -> tuple[Any, ...]:
        return facts.get("seed"), facts["config"].get("recipe"), facts["data"].get("fingerprint")

    return kept(one) == kept(other)
