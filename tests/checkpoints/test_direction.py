"""The direction of a metric where no --best-mode is given."""

import pytest

from hvdgan.checkpoints.direction import mode_of
from hvdgan.checkpoints.saver import Best


@pytest.mark.parametrize(
    "name", ["eval/hole_psnr", "eval/ssim", "eval/recall", "eval/inception_score", "judge/accuracy"]
)
def test_the_largest_value_is_the_best_of_a_metric_of_which_more_is_better(name):
    assert mode_of(name) == "max"
    best = Best.of(name, None, None).after(1, 3.0).after(2, 4.0).after(3, 2.0)
    assert (best.mode, best.step) == ("max", 2)
    assert Best.of(name, "min", None).mode == "min", "a mode that is given holds"


@pytest.mark.parametrize(
    "name", ["eval/fid", "eval/kid", "eval/l1", "eval/crps", "judge/loss", "psnr/loss", "eval/score"]
)
def test_the_smallest_value_is_the_best_of_all_others(name):
    assert mode_of(name) == "min"
    assert Best.of(name, None, None).after(1, 3.0).after(2, 4.0).after(3, 2.0).step == 3
