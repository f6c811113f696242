"""The networks in a loss: their averages over time, and one forward pass that two updates share."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from building import changed, data_of, stage_step, tiny_run, trained, values_of
from hvdgan.errors import UserError
from hvdgan.recipe import losses
from hvdgan.recipe.nets import SharedForward
from hvdgan.recipe.stages import Stage, Update
from tiny import Staged, Tiny, TinyOptions

LATENTS = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


class Taught(Tiny):
    """The generator's loss compares it with its average."""

    def fool(self, nets, batch):
        loss, _ = super().fool(nets, batch)
        wanted = nets.averaged.generator(LATENTS)
        return loss + tf.reduce_mean((nets.generator(LATENTS) - wanted) ** 2), {"wanted": tf.reduce_sum(wanted**2)}


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}])
def test_a_loss_sees_the_averages_of_the_step_before_in_inference_mode(settings):
    run = tiny_run(Taught, TinyOptions(norm="batch", learning_rate=0.05), **settings)
    for step in range(3):
        expected = run.state.sampling_nets.generator(LATENTS)
        latest = run.state.nets().generator(LATENTS)
        metrics, _ = stage_step(run)(step, step, data_of(run, step))
        assert float(metrics["fool/wanted"]) == pytest.approx(float(tf.reduce_sum(expected**2)), rel=1e-5)
    assert np.abs(expected - latest).max() > 0.01


class OfAverages(Tiny):
    """The loss depends on the weights through their average alone."""

    def fool(self, nets, batch):
        return tf.reduce_mean(nets.averaged.generator(batch.latents)), {}


class ThroughAverages(Staged):
    """The generator learns what the average of the discriminator likes, which stays as it is in the first stage."""

    ema = ("generator", "discriminator")

    def fool(self, nets, batch):
        return -tf.reduce_mean(nets.averaged.discriminator(nets.generator(batch.latents))), {}


def test_no_gradient_flows_to_the_weights_and_one_flows_to_the_inputs():
    with pytest.raises(UserError, match="the loss does not depend on .* of generator"):
        tiny_run(OfAverages)
    run = tiny_run(ThroughAverages)
    before = values_of(run)
    stage_step(run)(0, 0, data_of(run))
    moved = {name for name, value in values_of(run).items() if not np.array_equal(value, before[name])}
    assert any(name.startswith("networks/generator") for name in moved)
    assert not any("/discriminator/" in name for name in moved)


class Without(Taught):
    ema = ()


@pytest.mark.parametrize(("recipe", "settings"), [(Without, {}), (Taught, {"ema_decay": 0})])
def test_a_network_that_the_run_does_not_average_is_refused_by_name(recipe, settings):
    with pytest.raises(UserError, match=r"no network generator; the run averages .*ema.* --ema-decay 0: none"):
        tiny_run(recipe, **settings)


class AtOnce(Tiny):
    def stages(self):
        return [dataclasses.replace(stage, together=True) for stage in super().stages()]


@pytest.mark.parametrize(("recipe", "judgements"), [(Tiny, 3), (AtOnce, 2)])
def test_a_stage_runs_the_generator_once_and_a_simultaneous_one_judges_its_pictures_once(
    monkeypatch, recipe, judgements
):
    run, called, plain = tiny_run(recipe, TinyOptions(norm="batch")), [], keras.Model.__call__

    def call(self, *inputs, **keywords):
        called.append(self.name)
        return plain(self, *inputs, **keywords)

    monkeypatch.setattr(keras.Model, "__call__", call)
    step = stage_step(run, len(run.plan.stages) - 1, run.ranks)
    step.trace(run.source)
    assert sorted(called) == ["discriminator"] * judgements + ["generator"]


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


class InBothModes(Tiny):
    """The generator runs in inference mode in the update of the discriminator, and learns in that mode in its own."""

    def judge(self, nets, batch):
        fake, moving = nets.generator(batch.latents, training=False), nets.generator(batch.latents, training=True)
        loss, _ = super().judge(nets, batch)
        return loss, {"modes": tf.reduce_mean((fake - moving) ** 2)}

    def fool(self, nets, batch):
        fake = nets.generator(batch.latents, training=False)
        penalty = tf.add_n([tf.reduce_sum(each**2) for each in nets.generator.trainable_variables])
        return losses.non_saturating_generator(nets.discriminator(fake)) + 0.01 * penalty, {"penalty": penalty}


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}])
def test_a_loss_may_run_a_network_in_inference_mode(settings):
    run = tiny_run(InBothModes, TinyOptions(norm="batch"), **settings)
    before, made = values_of(run), run.state.nets().generator(LATENTS).numpy()
    metrics, _ = stage_step(run)(0, 0, data_of(run))
    assert metrics["judge/modes"] > 1e-3 and metrics["fool/penalty"] > 1
    moved = changed(before, values_of(run))
    assert not any("/generator/" in name and "moving" in name for name in moved)
    weights = [name for name in before if name.startswith("networks/generator/") and "moving" not in name]
    assert len(weights) == 6 and moved.issuperset(weights)
    assert np.abs(run.state.nets().generator(LATENTS) - made).max() > 1e-4


def fails(what):
    return type("Fails", (Taught,), {"fool": lambda self, nets, batch: what(nets, batch)})


@pytest.mark.parametrize(
    ("what", "advice"),
    [
        (lambda nets, batch: nets.generator.predict(batch.latents), r"nets.generator\(x, training=False\)"),
        (lambda nets, batch: nets.generator.losses, "adds the losses"),
        (lambda nets, batch: nets.generator.get_layer("dense"), "second output"),
        (lambda nets, batch: nets.averaged.generator(batch.latents, training=True), "nets.averaged runs"),
    ],
)
def test_what_a_loss_cannot_do_with_a_network_is_refused_with_what_to_write(what, advice):
    with pytest.raises(UserError, match=f"update fool: the loss fails: .*{advice}"):
        tiny_run(fails(what))


class Sampled(Tiny):
    def sample(self, nets, batch):
        return nets.generator(batch.latents, training=self.options.norm == "batch")


def test_sample_takes_inference_mode_alone():
    tiny_run(Sampled)
    with pytest.raises(UserError, match="training=True .* leave it out"):
        tiny_run(Sampled, TinyOptions(norm="batch"))
