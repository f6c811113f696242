"""A step changes only the networks that its updates own, by their gradients.

Modules: training.repeatable, training.state.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from building import changed, data_of, stage_step, tiny_run, values_of
from hvdgan.cli.errors import UserError
from hvdgan.recipe.draws import Random
from hvdgan.recipe.stages import Stage
from tiny import Exploding, Staged, Tiny, TinyOptions, Untouched

pytestmark = pytest.mark.core


def test_an_update_applies_the_gradient_that_a_plain_tape_gives():
    """At step 7, its stage's first: Adam's mean of the gradients is (1 - beta_1) times the gradient, beta_1 = 0.9."""
    run = tiny_run(Staged)
    data = data_of(run)
    network = run.state.networks["discriminator"]
    random = Random(run.config.seed, tf.constant(7, tf.int64), 0, 16)
    latents = run.recipe.draw(random.scoped("draw"))["latents"]
    images = tf.cast(data["images"], tf.float32) / 127.5 - 1
    fake = run.state.networks["generator"](latents)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.softplus(-network(images))) + tf.reduce_mean(tf.nn.softplus(network(fake)))
    gradients = tape.gradient(loss, [variable.value for variable in network.trainable_variables])
    before = values_of(run)
    metrics, finite = stage_step(run, 1)(7, 0, data)
    np.testing.assert_allclose(metrics["judge/loss"], loss, rtol=1e-5)
    assert finite.numpy().all()
    after = values_of(run)
    for variable, gradient in zip(network.trainable_variables, gradients, strict=True):
        momentum = after[f"optimizers/discriminator/{variable.path}/momentum"]
        np.testing.assert_allclose(momentum, 0.1 * gradient, rtol=1e-4, atol=1e-8)
        moved = after[f"networks/discriminator/{variable.path}"] - before[f"networks/discriminator/{variable.path}"]
        large = np.abs(gradient) > 1e-3  # where Adam's epsilon does not count, the first step is the learning rate
        np.testing.assert_allclose(moved[large], -1e-3 * np.sign(gradient)[large], rtol=0.01)


def test_an_owned_variable_that_the_loss_never_touches_is_refused_by_name():
    with pytest.raises(UserError, match="stage adversarial, update fool: the loss does not depend on generator/dense"):
        tiny_run(Untouched)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_that_is_not_finite_changes_neither_weights_nor_statistics(accumulate):
    run = tiny_run(Exploding, options=TinyOptions(norm="batch"), accumulate=accumulate)
    step = stage_step(run)
    for number in range(2):
        assert all(step(number, number, data_of(run))[1])
    before = values_of(run)
    _, finite = step(2, 2, data_of(run))
    assert finite.numpy().tolist() == [False, True]
    after = changed(before, values_of(run))
    assert not [name for name in after if "/discriminator/" in name]
    assert any(name.startswith("networks/generator/") and "moving_mean" in name for name in after)


def test_the_seed_decides_the_weights():
    (zero, again, one) = (values_of(tiny_run(seed=seed)) for seed in (0, 0, 1))
    assert not changed(zero, again) and "networks/generator/generator/dense/kernel" in changed(zero, one)


class Waiting(Tiny):
    """The judge steps only while its own loss, the mean over all ranks, is above a bound."""

    bound = 0.0

    def stages(self):
        judge, fool = super().stages()[0].updates
        only = dataclasses.replace(judge, only_if=lambda metrics: metrics["loss"] > self.bound)
        return [Stage("adversarial", 4, [only, fool])]


class WaitingForEver(Waiting):
    bound = 100.0


def test_an_update_is_applied_only_if_its_metrics_say_so():
    for recipe, applied in ((Waiting, 1.0), (WaitingForEver, 0.0)):
        run = tiny_run(recipe)
        before = values_of(run)
        metrics, finite = stage_step(run)(0, 0, data_of(run))
        assert float(metrics["judge/applied"]) == applied and all(finite)
        moved = {name for name in changed(before, values_of(run)) if "/discriminator/" in name}
        assert bool(moved) == bool(applied)
        assert any("/generator/" in name for name in changed(before, values_of(run)))
