"""Sums of three tensors have the same bits in every run, in networks and as gradients."""

import math
import sys

import pytest
import tensorflow as tf

from hvdgan.networks import sums
from launching import ROOT, run


@pytest.mark.long
def test_a_step_of_parallel_branches_has_one_result(tmp_path):
    """On four threads; without the fixed order 60 steps had eleven results, and three or eight with a half of it."""
    script = [sys.executable, ROOT / "tests" / "support" / "branches.py", "40"]
    done = run(script, tmp_path, TF_NUM_INTEROP_THREADS="4", TF_NUM_INTRAOP_THREADS="2")
    assert done.stdout.split() == ["1"], done.stdout + done.stderr


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_such_sums_are_those_of_the_formula(compiled):
    def second(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.sin(x) + tf.exp(x) + x**3 + tf.cos(x)
            slope = inner.gradient(y, x)
        return slope, outer.gradient(slope, x)

    sums.fix_order()
    slope, change = (tf.function(second) if compiled else second)(tf.constant(0.5))
    assert float(slope) == pytest.approx(math.cos(0.5) + math.exp(0.5) + 0.75 - math.sin(0.5), rel=1e-6)
    assert float(change) == pytest.approx(-math.sin(0.5) + math.exp(0.5) + 3 - math.cos(0.5), rel=1e-6)
