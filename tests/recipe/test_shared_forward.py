"""A network that two updates call on the same tensors runs once.

Modules: recipe.nets.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from building import stage_step, tiny_run, trained
from hvdgan.recipe import losses
from hvdgan.recipe.nets import SharedForward
from hvdgan.recipe.stages import Stage, Update
from nested import within_cond, within_function, within_loop
from tiny import Tiny, TinyOptions


def calls_while_tracing(monkeypatch, recipe, options, **settings):
    """The names of the networks that are run when the last stage is traced."""
    run = tiny_run(recipe, options, **settings)
    called = []
    plain = keras.Model.__call__

    def call(self, *inputs, **keywords):
        called.append(self.name)
        return plain(self, *inputs, **keywords)

    monkeypatch.setattr(keras.Model, "__call__", call)
    step = stage_step(run, len(run.schedule.stages) - 1).with_ranks(run.ranks)  # one that is not traced yet
    step.trace(run.source)
    return called


def test_an_alternating_stage_runs_the_generator_once(monkeypatch):
    called = calls_while_tracing(monkeypatch, Tiny, TinyOptions(norm="batch"))
    assert sorted(called) == ["discriminator"] * 3 + ["generator"]


class OldReals(Tiny):
    """The first update asks a network that it does not own what its owner asks last."""

    def stages(self):
        fool = Update("fool", owns=["generator"], loss=self.fool)
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        return [Stage("adversarial", self.options.steps, [fool, judge])]

    def fool(self, nets, batch):
        real, fake = nets.discriminator(batch.images), nets.discriminator(nets.generator(batch.latents))
        return losses.non_saturating_generator(fake - real), {}

    def judge(self, nets, batch):
        fake, real = nets.discriminator(nets.generator(batch.latents)), nets.discriminator(batch.images)
        return losses.non_saturating_discriminator(real, fake), {}


def assert_sharing_changes_nothing(monkeypatch, recipe, steps):
    """Compare weights, slots, averages and BatchNorm's statistics with and without it."""

    options = TinyOptions(norm="batch")
    shared = trained(tiny_run(recipe, options), steps)
    monkeypatch.setattr(SharedForward, "find", lambda *_, **__: None)
    for name, value in trained(tiny_run(recipe, options), steps).items():
        np.testing.assert_allclose(shared[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("recipe", [Tiny, OldReals])
def test_sharing_changes_nothing(monkeypatch, recipe):
    assert_sharing_changes_nothing(monkeypatch, recipe, steps=3)


def within_recompute_grad(compute, inputs):
    """No tape sees the calls: they run again when the gradient is computed."""
    return tf.recompute_grad(lambda: compute(inputs))()


class Elsewhere(Tiny):
    """One of its updates, or both, call the networks in a graph inside that of the step."""

    within = None
    updates_within = ()

    def stages(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        fool = Update("fool", owns=["generator"], loss=self.fool)
        return [Stage("adversarial", self.options.steps, [judge, fool])]

    def _of(self, update, compute, latents):
        return type(self).within(compute, latents) if update in self.updates_within else compute(latents)

    def judge(self, nets, batch):
        def compute(latents):
            real, fake = nets.discriminator(batch.images), nets.discriminator(nets.generator(latents))
            return losses.non_saturating_discriminator(real, fake)

        loss = self._of("judge", compute, batch.latents)
        return loss + 0.5 * compute(batch.latents), {}

    def fool(self, nets, batch):
        def compute(latents):
            return losses.non_saturating_generator(nets.discriminator(nets.generator(latents)))

        loss = self._of("fool", compute, batch.latents)
        return loss + 0.5 * compute(batch.latents), {}


@pytest.mark.long
@pytest.mark.parametrize("updates", [("judge",), ("fool",), ("judge", "fool")])
@pytest.mark.parametrize("within", [within_cond, within_function, within_loop, within_recompute_grad])
def test_calls_in_a_graph_inside_that_of_the_step_are_not_mixed_up_with_those_outside(monkeypatch, within, updates):
    recipe = type("Within", (Elsewhere,), {"within": staticmethod(within), "updates_within": updates})
    assert_sharing_changes_nothing(monkeypatch, recipe, steps=2)
