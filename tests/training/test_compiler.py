"""--jit computes what a run without it computes, but for rounding, and refuses what XLA cannot compile."""

import numpy as np
import pytest
import tensorflow as tf

from building import assert_equal_gradients, data_of, start_equally, tiny_run, values_of
from hvdgan.cli.errors import UserError
from hvdgan.recipe.draws import Random
from hvdgan.training.compiler import CompiledRandom
from saved import state, train
from small import settings, small
from tiny import Tiny

OTHERS = ("cyclegan", "progressive", "stylegan2", "wgan_gp")
"""recipes with two domains, with growing networks, with second derivatives of two kinds"""
WITH_OTHER_ROUNDING = {"progressive": 1e-1}
"""largest differences of a gradient, relative to its norm, where 0.02 is not enough: weights that differ by 1e-7 give
gradients that differ as much as with --jit, since Adam's first step follows the sign of each gradient"""


@pytest.mark.timeout(900)  # XLA compiles the second derivatives of stylegan2 for minutes on a busy core
@pytest.mark.parametrize("name", ["dcgan", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_a_recipe_computes_the_same(name, tmp_path):
    """Metrics and gradients of the first step of each stage, and the statistics that it moves."""
    recipe, options = small(name)
    plain, compiled = (tiny_run(recipe, options, jit=jit, **settings(name, tmp_path)) for jit in (False, True))
    for index, stage in enumerate(plain.schedule.stages):
        start_equally(plain, compiled)
        (expected, _), (found, finite) = (run.steps[index](0, 0, data_of(run)) for run in (plain, compiled))
        assert all(finite)
        for metric, value in expected.items():
            assert float(found[metric]) == pytest.approx(float(value), rel=1e-3, abs=1e-4), metric
        after = values_of(plain), values_of(compiled)
        assert_equal_gradients(stage.owns, *after, tolerance=WITH_OTHER_ROUNDING.get(name, 2e-2))
        for moving in (variable for variable in after[0] if "/moving_" in variable):
            np.testing.assert_allclose(after[1][moving], after[0][moving], rtol=1e-3, atol=1e-5, err_msg=moving)


class Hosted(Tiny):
    """A loss that calls NumPy."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        return loss + tf.ensure_shape(tf.numpy_function(np.float32, [0.0], tf.float32), ()), metrics


def test_an_operation_that_xla_lacks_is_named_with_its_update():
    with pytest.raises(UserError) as refused:
        tiny_run(Hosted, jit=True, accumulate=2)
    line = Hosted.judge.__code__.co_firstlineno
    assert str(refused.value) == (
        f"recipe Hosted (tests/training/test_compiler.py, line {line}): stage adversarial, update judge: --jit: XLA "
        "cannot compile PyFunc; leave out --jit, or use other operations"
    )


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path):
    for name, steps in (("whole", "8"), ("parts", "5"), ("parts", "8")):
        assert train(tmp_path / name, "--jit", "--norm", "batch", "--max-steps", steps) == 0
    assert state(tmp_path / "whole", 8) == state(tmp_path / "parts", 8)


def drawn(kind, name, arguments, compiled):
    """Numbers of a key, at step 4; the place of the first sample is a tensor, as in a loop over micro-batches."""

    def draw(step, first):
        random = kind(5, step, first, 64).scoped("update")
        return getattr(random, name)("key", (3, 7), *arguments)

    function = tf.function(draw, jit_compile=compiled, autograph=False)
    return function(tf.constant(4, tf.int64), tf.constant(2**40 + 1, tf.int64)).numpy()


@pytest.mark.parametrize(("name", "arguments"), [("uniform", ()), ("integers", (1000,)), ("normal", ())])
def test_draws_inside_of_a_compiled_function_are_those_outside(name, arguments):
    """Uniform numbers bit for bit; normal ones but for the rounding of log, sin and cos near numbers up to 5."""
    expected = drawn(Random, name, arguments, compiled=False)
    found = drawn(CompiledRandom, name, arguments, compiled=True)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6 if name == "normal" else 0)
