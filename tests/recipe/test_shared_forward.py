"""A network that two updates call on the same tensors runs once. Modules: recipe.nets"""

import keras
import numpy as np
import pytest

from building import stage_step, tiny_run, trained
from hvdgan.recipe import losses
from hvdgan.recipe.nets import SharedForward
from hvdgan.recipe.stages import Stage, Update
from tiny import Tiny, TinyOptions


def test_an_alternating_stage_runs_the_generator_once(monkeypatch):
    run, called, plain = tiny_run(Tiny, TinyOptions(norm="batch")), [], keras.Model.__call__

    def call(self, *inputs, **keywords):
        called.append(self.name)
        return plain(self, *inputs, **keywords)

    monkeypatch.setattr(keras.Model, "__call__", call)
    step = stage_step(run, len(run.schedule.stages) - 1, run.ranks)
    step.trace(run.source)
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


@pytest.mark.parametrize("recipe", [Tiny, OldReals])
def test_sharing_changes_nothing(monkeypatch, recipe):
    """Of weights, slots, averages and BatchNorm's statistics."""
    options = TinyOptions(norm="batch")
    shared = trained(tiny_run(recipe, options), 3)
    monkeypatch.setattr(SharedForward, "find", lambda *_, **__: None)
    for name, value in trained(tiny_run(recipe, options), 3).items():
        np.testing.assert_allclose(shared[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
