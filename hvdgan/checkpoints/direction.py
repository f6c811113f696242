"""Which values of a metric are the better ones, where nothing else says so; it needs neither TensorFlow nor Keras."""

from typing import Literal

_LARGEST = frozenset({"psnr", "ssim", "precision", "recall", "density", "coverage", "accuracy"})


def mode_of(metric: str) -> Literal["min", "max"]:
    """Return "max" for a metric whose largest value is the best, by the last word of its name; "min" for all others.

    Args:
        metric: name in metrics.jsonl, such as eval/hole_psnr or eval/inception_score.
    """
    name = metric.rpartition("/")[2]
    return "max" if name == "inception_score" or name.rpartition("_")[2] in _LARGEST else "min"
