"""Which values of a metric are the better ones, where nothing else says so; it needs neither TensorFlow nor Keras."""

from typing import Literal

_LARGEST = frozenset({"psnr", "ssim", "precision", "recall", "density", "coverage", "accuracy"})


def mode_of(metric: str) -> Literal["min", "max"]:
    """Return "max" if a metric's largest value is the best, by the last word of its name; "min" if its smallest."""
    name = metric.rpartition("/")[2]
    return "max" if name == "inception_score" or name.rpartition("_")[2] in _LARGEST else "min"
