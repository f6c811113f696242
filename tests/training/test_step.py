"""A step changes only the networks that its updates own, by their gradients, rates and clipping, and their averages.
Modules: training.averages, training.optimizers"""

import ctypes
import dataclasses
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from building import changed, data_of, stage_step, tiny_run, values_of
from hvdgan.errors import UserError
from hvdgan.recipe.draws import Random
from hvdgan.training.step import StageStep
from tiny import Exploding, Staged, Tiny, TinyOptions, Untouched

pytestmark = pytest.mark.core


class Mallinfo2(ctypes.Structure):
    """Of the C library: numbers of bytes and of pieces, in the order of its mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in "arena pieces small maps mapped _ freed used free top".split()]


MALLINFO2 = ctypes.CDLL(None).mallinfo2
MALLINFO2.restype = Mallinfo2


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


def test_a_step_keeps_no_memory():
    run = tiny_run(Tiny)
    step, data = stage_step(run), data_of(run)

    def used_after(numbers):
        for number in numbers:
            step(number, number + 1, data)[1].numpy()
        gc.collect()
        return MALLINFO2().used

    before = used_after(range(10**6, 10**6 + 300))
    assert used_after(range(2 * 10**6, 2 * 10**6 + 1000)) - before < 200_000  # 200 bytes a step


def test_an_owned_variable_that_the_loss_never_touches_is_refused_by_name():
    with pytest.raises(UserError, match="stage adversarial, update fool: the loss does not depend on generator/dense"):
        tiny_run(Untouched)


class ExplodingAtOnce(Exploding):
    def stages(self):
        return [dataclasses.replace(stage, together=True) for stage in super().stages()]


@pytest.mark.parametrize("recipe", [Exploding, ExplodingAtOnce])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_that_is_not_finite_changes_neither_weights_nor_statistics(recipe, accumulate):
    run = tiny_run(recipe, options=TinyOptions(norm="batch"), accumulate=accumulate)
    step = stage_step(run)
    for number in range(2):
        assert all(step(number, number, data_of(run))[1])
    before = values_of(run)
    _, finite = step(2, 2, data_of(run))
    assert finite.numpy().tolist() == [False, True]
    after = changed(before, values_of(run))
    assert not [name for name in after if "/discriminator/" in name]
    assert any(name.startswith("networks/generator/") and "moving_mean" in name for name in after)


class Seldom(Tiny):
    def stages(self):
        (stage,) = super().stages()
        return [dataclasses.replace(stage, updates=[dataclasses.replace(each, every=2) for each in stage.updates])]


@pytest.mark.parametrize(("settings", "moves"), [({"ema_decay": 0.5}, False), ({"ema_half_life": 16.0}, True)])
def test_by_a_half_life_in_images_an_average_moves_in_steps_without_an_update_too(settings, moves):
    run = tiny_run(Seldom, **settings)
    step = stage_step(run)
    step(1, 1, data_of(run))
    before = values_of(run)
    step(2, 2, data_of(run))
    assert {name.split("/")[0] for name in changed(before, values_of(run))} == ({"ema"} if moves else set())


@pytest.mark.parametrize(
    ("settings", "decay_at"),
    [
        ({"ema_decay": 0.5}, lambda step: min(0.5, (1 + step) / (10 + step))),
        # 8 images, and early in a run a twentieth of those seen: nothing of the initial weights stays.
        ({"ema_half_life": 8.0}, lambda step: 0.5 ** (16 / min(8, 16 * step / 20)) if step else 0.0),
    ],
)
def test_the_moving_average_follows_the_weights(settings, decay_at):
    run = tiny_run(**settings)
    step = stage_step(run)
    name = "generator/generator/dense/kernel"
    average = values_of(run)[f"ema/{name}"]
    np.testing.assert_array_equal(average, values_of(run)[f"networks/{name}"])
    for number in range(12):
        step(number, number, data_of(run, number))
        decay = decay_at(number)
        average = decay * average + (1 - decay) * values_of(run)[f"networks/{name}"]
    np.testing.assert_allclose(values_of(run)[f"ema/{name}"], average, rtol=1e-5, atol=1e-7)


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
    plain = StageStep(run.recipe, run.state, _with_update().plan.stages[0], run.ranks, run.config)
    plain(1, 0, data_of(run))
    assert float(run.state.optimizers["discriminator"].learning_rate) == pytest.approx(0.001)


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


@pytest.mark.parametrize(("scaling", "factor"), [("linear", 0.25), ("sqrt", 0.5)])
def test_learning_rates_grow_with_the_batch_as_asked(scaling, factor):
    """A batch of 16 where the rates are meant for 64; both for an update's own rate and for an optimizer's."""
    for rate, expected in ((None, 0.001), (0.02, 0.02)):
        run = _with_update({"lr_scaling": scaling}, learning_rate=rate)
        stage_step(run)(0, 0, data_of(run))
        assert float(run.state.optimizers["discriminator"].learning_rate) == pytest.approx(expected * factor)


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


@pytest.mark.parametrize(
    ("settings", "unit"), [({"global_batch_size": 6}, 4), ({"global_batch_size": 8, "accumulate": 4}, 16)]
)
def test_packs_of_samples_are_whole_on_each_rank_and_in_each_micro_batch_or_refused(settings, unit):
    """Losses that see several samples as one (PacGAN)."""
    packed = type("Packed", (Tiny,), {"pack": 4})
    tiny_run(packed, global_batch_size=16, accumulate=2)
    with pytest.raises(UserError, match=f"into packs of 4; take a multiple of {unit}$"):
        tiny_run(packed, **settings)
    with pytest.raises(UserError, match="pack is 0; it must be a number of samples, as in pack = 4$"):
        tiny_run(type("Unpacked", (Tiny,), {"pack": 0}), **settings)


class Generating(Tiny):
    """A generator with other layers between its latents and the pictures, and plain gradient descent."""

    def networks(self):
        generator = keras.Sequential([keras.Input((8,)), *self.inner(), layers.Reshape((8, 8, 1), name="to_image")])
        return {**super().networks(), "generator": generator}

    def optimizers(self):
        return {name: keras.optimizers.SGD(0.01) for name in ("generator", "discriminator")}

    def inner(self):
        return [layers.Dense(64, "tanh", dtype="float32")]


class Judging(Tiny):
    """A discriminator with other layers between the pictures and its logit."""

    def networks(self):
        parts = [keras.Input((8, 8, 1)), *self.inner(), layers.Flatten(), layers.Dense(1)]
        return {**super().networks(), "discriminator": keras.Sequential(parts)}

    def inner(self):
        """A leaky ReLU that is no layer."""
        return [layers.Conv2D(filters, 3, padding="same", activation="leaky_relu") for filters in (4, 8)]


def test_a_leaky_relu_that_is_no_layer_passes_the_graph_optimizer(capfd):
    run = tiny_run(Judging, accumulate=2)
    stage_step(run)(0, 0, data_of(run))
    assert not tf.config.optimizer.get_experimental_options()["remapping"]
    assert "remapper failed" not in capfd.readouterr().err
    tiny_run(Tiny)
    assert tf.config.optimizer.get_experimental_options()["remapping"]


class Regularised(Generating):
    """A generator with a loss of its own, whose call in the judge's update is used again in its own update."""

    def inner(self):
        return [layers.Dense(64, "tanh", activity_regularizer="l2")]


def test_a_call_that_another_update_has_made_counts_for_its_owner():
    runs = [tiny_run(Regularised), tiny_run(Regularised, accumulate=2)]  # without and with own forward passes
    shared, apart = (stage_step(run)(0, 0, data_of(run))[0] for run in runs)
    assert "judge/network_losses" not in shared and float(shared["fool/network_losses"]) > 0
    for name, value in shared.items():
        np.testing.assert_allclose(value, apart[name], rtol=1e-5, err_msg=name)
    for one, other in zip(*(run.state.networks["generator"].trainable_variables for run in runs), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)


class Half(Judging):
    def inner(self):
        return [layers.Dense(8, dtype="bfloat16")]


class OfKeras2(layers.Layer):
    """A layer written for Keras 2: its weight is a tf.Variable."""

    def __init__(self):
        super().__init__(name="scale")
        self.gain = tf.Variable(tf.ones(1), name="weight")

    def call(self, x):
        return x * self.gain


class Forgotten(Judging):
    """A discriminator with such a layer in a network within it."""

    def inner(self):
        return [keras.Sequential([OfKeras2()])]


@pytest.mark.parametrize(
    ("recipe", "precision", "complaint"),
    [
        (Half, "float32", r"discriminator trains .*/kernel in bfloat16, .* give the layer dtype=\"mixed_bfloat16\""),
        (Generating, "mixed_float16", r"network generator ends in float16, with layer to_image; .* dtype=\"float32\""),
        (Forgotten, "float32", r"network discriminator, layer scale: gain is a tf.Variable, which .*add_weight"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_what_to_write(recipe, precision, complaint):
    with pytest.raises(UserError, match=complaint):
        tiny_run(recipe, precision=precision)


def test_a_step_in_which_nothing_is_due_is_traced_as_the_others_and_changes_nothing():
    run = tiny_run(Seldom)
    step, before = stage_step(run), values_of(run)
    assert len(step.traced) == 2
    assert step(0, 0, data_of(run))[0] == {} and not changed(before, values_of(run))
    step(1, 1, data_of(run))
    assert changed(before, values_of(run))
