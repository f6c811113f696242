"""Learning rates, decays and clipping of an update.

Modules: training.optimizers.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run, values_of
from hvdgan.recipe.stages import LearningRate
from hvdgan.training.optimizers import rate_at
from hvdgan.training.step import StageStep
from tiny import Staged


def _with_update(settings=None, **changes):
    """A recipe whose first stage trains the discriminator, with another update."""

    class Changed(Staged):
        def stages(self):
            generator, discriminator, _ = super().stages()
            (judge,) = discriminator.updates
            return [dataclasses.replace(discriminator, updates=[dataclasses.replace(judge, **changes)]), generator]

    return tiny_run(Changed, **(settings or {}))


def test_an_update_has_its_own_rate_and_one_without_a_rate_goes_back_to_the_optimizers():
    """Two updates of one network in turn; Adam's first step is the rate wherever the gradient is not tiny."""
    run = _with_update(learning_rate=0.02)
    before = values_of(run)
    stage_step(run)(0, 0, data_of(run))
    name = "networks/discriminator/discriminator/dense_2/kernel"
    assert np.median(np.abs(values_of(run)[name] - before[name])) == pytest.approx(0.02, rel=0.01)
    plain = StageStep(run.recipe, run.state, _with_update().schedule.stages[0], run.ranks, run.config)
    plain(1, 0, data_of(run))
    assert float(run.state.optimizers["discriminator"].learning_rate) == pytest.approx(0.001)


def test_an_update_has_its_own_betas_and_leaves_the_optimizers():
    run = _with_update(betas=(0.0, 0.5))
    stage_step(run)(0, 0, data_of(run))
    plain = _with_update()
    stage_step(plain)(0, 0, data_of(plain))
    name = "optimizers/discriminator/discriminator/dense_2/kernel"
    own, other = values_of(run), values_of(plain)
    np.testing.assert_allclose(own[f"{name}/momentum"] * 0.1, other[f"{name}/momentum"], rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(own[f"{name}/velocity"] * 0.001, other[f"{name}/velocity"] * 0.5, rtol=1e-3, atol=1e-12)
    assert run.state.optimizers["discriminator"].beta_1 == 0.9


@pytest.mark.parametrize("clip_norm", [1e-3, 1e3])
def test_gradients_are_clipped_by_the_norm_of_all_owned_variables(clip_norm):
    def momentum(run):
        stage_step(run)(0, 0, data_of(run))
        found = [value for name, value in values_of(run).items() if "optimizers/disc" in name and "momentum" in name]
        return np.concatenate([value.ravel() for value in found])

    plain, clipped = momentum(_with_update()), momentum(_with_update(clip_norm=clip_norm))
    norm = np.linalg.norm(plain) / 0.1  # Adam's mean after one step is 0.1 of the gradient
    assert 1e-3 < norm < 1e3
    np.testing.assert_allclose(clipped, plain * min(1.0, clip_norm / norm), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0.5, [0.5, 0.5, 0.5, 0.5, 0.5]),
        (LearningRate(0.4, "linear", final=0.2), [0.4, 0.35, 0.3, 0.25, 0.2]),
        (LearningRate(0.4, "cosine"), [0.4, 0.2 + 0.2 * 2**-0.5, 0.2, 0.2 - 0.2 * 2**-0.5, 0.0]),
        (LearningRate(0.3, "linear", warmup_steps=2), [0.1, 0.2, 0.3, 0.15, 0.0]),
    ],
)
def test_a_learning_rate_over_five_steps(rate, expected):
    rates = [float(rate_at(rate, tf.constant(step, tf.int64), 5)) for step in range(5)]
    assert rates == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 0.25), ("sqrt", 0.5)])
def test_learning_rates_grow_with_the_batch_as_asked(scaling, factor):
    """A batch of 16 where the rates are meant for 64; both for an update's own rate and for an optimizer's."""
    for rate, expected in ((None, 0.001), (0.02, 0.02)):
        run = _with_update({"lr_scaling": scaling}, learning_rate=rate)
        stage_step(run)(0, 0, data_of(run))
        assert float(run.state.optimizers["discriminator"].learning_rate) == pytest.approx(expected * factor)
