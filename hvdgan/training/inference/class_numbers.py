"""Numbers the classes of other data than a run was trained on as the run has numbered its own."""

import hashlib
from typing import Any

import numpy as np

from hvdgan.data import Source
from hvdgan.data.holdout import Subset
from hvdgan.recipe import DataSpec
from hvdgan.training.evaluation.sets import in_short


def as_in_run(source: Source, spec: DataSpec, flag: str = "--data") -> tuple[Source, str]:
    """Give the samples of other data the labels that they would have in the data of a run.

    Classes are paired by name, or by number where there are no names: data in folders number only those that they have.

    Args:
        source: other data.
        spec: facts about the data of the run.
        flag: flag that names the other data, for the line.

    Returns:
        The samples, and an empty string. Without labels, if one of the classes is none of the run's, or if only one
        side has names and the numbers of classes differ; then a line that says so. A line, too, if only one side has
        names and the classes are paired by number.
    """
    if source.labels is None or not (source.num_classes and spec.num_classes):
        return source, ""
    names, line = source.class_names or [], ""
    if names and spec.class_names:
        known = {name: number for number, name in enumerate(spec.class_names[: spec.num_classes])}
        numbers = [known.get(name, -1) for name in names]
    elif bool(names) == bool(spec.class_names):
        numbers = list(range(spec.num_classes))
    elif source.num_classes == spec.num_classes:
        numbers, line = list(range(spec.num_classes)), _about_numbers(source, spec, flag)
    else:
        numbers = []
    numbers += [-1] * (source.num_classes - len(numbers))
    labels = np.array(numbers, np.int32)[source.labels]
    if labels.min() < 0:
        return _Relabelled(source, None, spec), _about(source, spec, flag)
    if source.num_classes == spec.num_classes and np.array_equal(labels, source.labels):
        return source, line
    return _Relabelled(source, labels, spec), line


class _Relabelled(Subset):
    """All samples of another source, with the labels of a run, or without labels."""

    def __init__(self, source: Source, labels: np.ndarray | None, spec: DataSpec) -> None:
        super().__init__(source, np.arange(len(source)))
        self.labels, self._classes = labels, 0 if labels is None else spec.num_classes
        names = spec.class_names or source.class_names
        self.class_names = None if labels is None or names is None else list(names)

    @property
    def num_classes(self) -> int:
        return self._classes

    def stamp(self) -> list[Any] | None:
        stamp = super().stamp()
        labels = b"" if self.labels is None else self.labels.tobytes()
        return None if stamp is None else [stamp, hashlib.sha256(labels).hexdigest()]


def _about(source: Source, spec: DataSpec, flag: str) -> str:
    names, own = source.class_names, spec.class_names
    if names and own:
        found, expected = in_short(names), in_short(own)
    else:
        found, expected = f"0 to {source.num_classes - 1}", f"0 to {spec.num_classes - 1}"
    return (
        f"{flag} {source.name}: no labels are taken, because its classes are {found}, and those of the run {expected}; "
        "give data with all classes of the run, under the same names, to compare within classes"
    )


def _about_numbers(source: Source, spec: DataSpec, flag: str) -> str:
    unnamed = "the data do" if spec.class_names else "the checkpoint does"
    return (
        f"{flag} {source.name}: classes are paired by number, because {unnamed} not name them: "
        f"{in_short(source.class_names or spec.class_names)} are 0 to {spec.num_classes - 1}"
    )
