"""Which checkpoints stay: the newest, the best, and the last of each stage."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from hvdgan.checkpoints import checkpoint
from hvdgan.cli.errors import RunError


@dataclasses.dataclass(frozen=True)
class Best:
    """The best checkpoint so far, by a metric.

    metric: its name in metrics.jsonl.
    mode: min or max, which is better.
    value: at the best step, if there was one.
    step: of that checkpoint.
    """

    metric: str
    mode: str
    value: float | None = None
    step: int | None = None

    @staticmethod
    def of(metric: str | None, mode: str, saved: dict[str, Any] | None) -> "Best | None":
        """The best so far as a checkpoint has it, or the beginning of it; None where no metric is followed."""
        if metric is None:
            return None
        same = saved is not None and (saved["metric"], saved["mode"]) == (metric, mode)
        return Best(**saved) if same and saved else Best(metric, mode)

    def after(self, step: int, value: float | None) -> "Best":
        """The best one when a checkpoint with this value has been added; None: it was not measured."""
        if value is None or value != value:
            return self
        better = self.value is None or (value < self.value if self.mode == "min" else value > self.value)
        return dataclasses.replace(self, value=value, step=step) if better else self


@dataclasses.dataclass(frozen=True)
class Retention:
    """Deletes what is not to stay, and nothing that this run has not written.

    Args:
        keep: how many of the newest stay; 0: all.
    """

    keep: int

    def prune(self, folder: Path, newest: checkpoint.Snapshot) -> list[str]:
        """Delete the checkpoints of the run that made `newest` which need not stay.

        Args:
            folder: RUN_DIR/checkpoints.
            newest: just written; its facts tell the run and the best step.

        Returns:
            For each that cannot be deleted a line for people; the next save is another try.
        """
        if not self.keep:
            return []
        mine = [(path, manifest) for path, manifest in _manifests(folder) if _is_of(manifest, newest.facts)]
        mine.sort(key=lambda each: each[1]["step"])
        stay = {manifest["step"] for _, manifest in mine[-self.keep :]}
        stay |= set({manifest["stage_index"]: manifest["step"] for _, manifest in mine}.values())  # the last of each
        stay.add((newest.facts.get("best") or {}).get("step"))
        failures = []
        for path, manifest in mine:
            if manifest["step"] not in stay and manifest["step"] < newest.step:
                doomed = path.with_name(f".{path.name}.deleted")
                try:
                    path.rename(doomed)  # at once, so that nobody finds half of it
                    shutil.rmtree(doomed)  # what is left of it, checkpoint.write tries to delete again
                except OSError as error:
                    failures.append(f"old checkpoint {path} cannot be removed: {error}; the next save tries again")
        return failures


def _manifests(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for path in checkpoint.newest_first(folder):
        try:
            found.append((path, checkpoint.read_manifest(path)))
        except RunError:
            continue  # whatever it is, it is not ours to delete
    return found


def run_id_of(folder: Path, manifest: dict[str, Any]) -> str:
    """The id of the run that a checkpoint is of.

    An elastic run that had lost rank 0 once wrote none; its earlier checkpoints have it.

    Args:
        folder: RUN_DIR/checkpoints.
        manifest: of the checkpoint.

    Returns:
        The id; empty where no checkpoint of the run has it.
    """
    own: str = manifest.get("run_id", "")
    others = (other["run_id"] for _, other in _manifests(folder) if other.get("run_id") and _alike(other, manifest))
    return own or next(others, "")


def _is_of(manifest: dict[str, Any], facts: dict[str, Any]) -> bool:
    if "stage_index" not in manifest:
        return False
    run_id = manifest.get("run_id")
    return _alike(manifest, facts) if run_id == "" else run_id == facts["run_id"]


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two checkpoints of one folder have what a run keeps from its begin to its end."""

    def kept(facts: dict[str, Any]) -> tuple[Any, ...]:
        return facts.get("seed"), facts["config"].get("recipe"), facts["data"].get("fingerprint")

    return kept(one) == kept(other)
