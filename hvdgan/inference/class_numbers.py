"""Numbers the classes of other data than a run was trained on as the run has numbered its own."""

import numpy as np

from hvdgan.data import Samples
from hvdgan.evaluation.sets import in_short
from hvdgan.recipe import DataSpec


def as_in_run(source: Samples, spec: DataSpec, flag: str = "--data") -> tuple[Samples, str]:
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
        return _relabelled(source, None, spec), _about(source, spec, flag)
    if source.num_classes == spec.num_classes and np.array_equal(labels, source.labels):
        return source, line
    return _relabelled(source, labels, spec), line


def _relabelled(source: Samples, labels: np.ndarray | None, spec: DataSpec) -> Samples:
    """The samples with the labels of a run, or without labels."""
    if labels is None:
        return source.replace(labels=None, classes=0, class_names=None)
    return source.replace(labels=labels, classes=spec.num_classes, class_names=spec.class_names or source.class_names)


def _about(source: Samples, spec: DataSpec, flag: str) -> str:
    names, own = source.class_names, spec.class_names
    if names and own:
        found, expected = in_short(names), in_short(own)
    else:
        found, expected = f"0 to {source.num_classes - 1}", f"0 to {spec.num_classes - 1}"
    return (
        f"{flag} {source.name}: no labels are taken, because its classes are {found}, and those of the run {expected}; "
        "give data with all classes of the run, under the same names, to compare within classes"
    )


def _about_numbers(source: Samples, spec: DataSpec, flag: str) -> str:
    unnamed = "the data do" if spec.class_names else "the checkpoint does"
    return (
        f"{flag} {source.name}: classes are paired by number, because {unnamed} not name them: "
        f"{in_short(source.class_names or spec.class_names)} are 0 to {spec.num_classes - 1}"
    )
