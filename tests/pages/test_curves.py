"""Charts: the axis, and the mark at the best checkpoint."""

import numpy as np
import pytest

from hvdgan.pages import curves
from hvdgan.pages.curves import Marks
from hvdgan.pages.reading.thinning import Series


def drawn(values, **marks):
    """A chart of these values at the steps 1, 2, and so on."""
    series = Series("loss")
    series.add(np.arange(1, len(values) + 1), np.array(values))
    return curves.draw("loss", [series], Marks(**marks), "a")


@pytest.mark.parametrize(("values", "is_log"), [([1.0, 1000.0], True), ([-1.0, 1000.0], False), ([1.0, 99.0], False)])
def test_the_axis_is_logarithmic_if_positive_values_differ_a_hundredfold(values, is_log):
    assert drawn(values).is_log == is_log


def test_the_best_checkpoint_has_a_mark():
    assert "var(--mark)" in drawn([1.0, 2.0], best=(1, 1.0)).svg
    assert "var(--mark)" not in drawn([1.0, 2.0]).svg
