"""The direction of a metric where no --best-mode is given."""

import pytest

from hvdgan.checkpoints.saver import Best


@pytest.mark.parametrize(
    ("name", "mode", "best"),
    [
        ("eval/hole_psnr", "max", 2),
        ("eval/recall", "max", 2),
        ("judge/accuracy", "max", 2),
        ("eval/fid", "min", 3),
        ("psnr/loss", "min", 3),
    ],
)
def test_more_is_better_only_where_the_name_of_the_metric_says_so(name, mode, best):
    found = Best.of(name, None, None).after(1, 3.0).after(2, 4.0).after(3, 2.0)
    assert (found.mode, found.step) == (mode, best)
    assert Best.of(name, "min", None).mode == "min", "a mode that is given holds"
