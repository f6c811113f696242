"""The recipe r3gan, and its layers."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from building import batch_of, data_of, filled, stage_step, tiny_run, values_of
from hvdgan.networks.equalised import Resample
from hvdgan.networks.r3gan import r3gan_discriminator, r3gan_generator
from hvdgan.recipe import DataSpec
from hvdgan.recipe.schedule import value_at
from hvdgan.recipes.r3gan import R3GAN, R3GANOptions

SMALL = {"nf": 2, "blocks": 1, "group_width": 2}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("size", "num_classes"), [(32, 3), (64, 0), (128, 3), (256, 0)])
def test_the_networks_of_each_size_consist_of_blocks_that_begin_as_the_identity(size, num_classes):
    shape = {"image_size": size, "channels": 3, "num_classes": num_classes, "nf": 2, "blocks": 1, "group_width": 16}
    generator = r3gan_generator(**shape, latent_size=4)
    discriminator = r3gan_discriminator(**shape)
    x = tf.constant(normal(2, 4))
    for network in (generator, discriminator):
        blocks = [
            each for each in network.layers if each.name.startswith("block") and isinstance(each, keras.layers.Add)
        ]
        depth = int(math.log2(size)) - 1
        assert len(blocks) == depth
        inputs = [x, tf.constant([0, 2])] if num_classes else x
        pairs = keras.Model(network.inputs, [end for each in blocks for end in (each.input[0], each.output)])(inputs)
        assert all(np.array_equal(*pair) for pair in zip(pairs[::2], pairs[1::2], strict=True))
        middle = network.get_layer("block_4_1_conv_2")
        assert middle.groups == 2 * middle.filters // 16 // 2
        deviation = np.std(middle.kernel) * math.sqrt(math.prod(middle.kernel.shape[:-1]))
        assert deviation == pytest.approx(math.sqrt(2 / 1.04) * depth**-0.25, rel=0.1)
        x = network(inputs)
    assert generator.output_shape == (None, size, size, 3) and x.shape == (2,)


@pytest.mark.parametrize("up", [False, True])
def test_images_are_halved_and_doubled_by_the_bilinear_filter_with_zeros_outside(up):
    x = normal(2, 8, 6, 3)
    doubled = [np.zeros((2 * n, n)) for n in (8, 6) if up] or [np.zeros((n, n // 2)) for n in (8, 6)]
    for matrix in doubled:
        for place in range(matrix.shape[1]):
            for tap, weight in zip(range(2 * place - 1, 2 * place + 3), (0.25, 0.75, 0.75, 0.25), strict=True):
                if 0 <= tap < len(matrix):
                    matrix[tap, place] = weight
    rows, columns = doubled if up else [matrix.T / 2 for matrix in doubled]
    expected = np.einsum("ij,bjkc,lk->bilc", rows, x, columns)
    layer = Resample(up=up)
    np.testing.assert_allclose(layer(tf.constant(x)), expected, atol=1e-6)
    assert layer(keras.Input(x.shape[1:])).shape[1:] == expected.shape[1:]


def test_the_logit_of_a_class_is_the_product_of_the_features_and_its_vector():
    discriminator = r3gan_discriminator(image_size=32, channels=1, num_classes=3, **SMALL)
    images = tf.constant(normal(3, 32, 32, 1))
    features = keras.Model(discriminator.inputs[0], discriminator.get_layer("to_logit").output)(images)
    vectors = discriminator.get_layer("vectors").kernel.numpy()
    for number in range(3):
        logits = discriminator([images, tf.fill(3, number)])
        np.testing.assert_allclose(logits, features.numpy() @ vectors[number], rtol=1e-4, atol=1e-6)


class Groups(keras.layers.Conv2D):
    """A convolution in groups as the definition has it: one plain convolution for each."""

    def convolution_op(self, inputs, kernel):
        parts = zip(
            *(tf.split(each, self.groups, axis=-1) for each in (inputs, tf.convert_to_tensor(kernel))), strict=True
        )
        return tf.concat([tf.nn.conv2d(*part, 1, "SAME") for part in parts], axis=-1)


def plain(network, make, **others):
    """The same network without hvdgan's kernels."""
    same = make(image_size=32, channels=1, num_classes=10, **SMALL, **others)
    same.set_weights(network.get_weights())
    for layer in same.layers:
        if getattr(layer, "groups", 1) > 1:
            layer.__class__ = Groups
    return same


@pytest.mark.long
def test_both_losses_and_their_gradients_are_those_of_a_plain_keras_loop():
    """Adam's mean of the gradients with beta_1 = 0 is the gradient itself."""
    run = filled(tiny_run(R3GAN, R3GANOptions(**SMALL, latent_size=4, gamma=3.0), image_size=32))
    batch, labels = batch_of(run, "judge"), tf.constant(run.source.labels[:16])
    generator = plain(run.state.networks["generator"], r3gan_generator, latent_size=4)
    critic = plain(run.state.networks["discriminator"], r3gan_discriminator)
    fake, penalties = generator([batch.latents, labels]), []
    with tf.GradientTape() as tape:
        for images in (batch.images, fake):
            with tf.GradientTape() as inner:
                inner.watch(images)
                total = tf.reduce_sum(critic([images, labels]))
            penalties.append(tf.reduce_sum(inner.gradient(total, images) ** 2) / 16)
        real_logits, fake_logits = critic([batch.images, labels]), critic([fake, labels])
        relativistic = -tf.reduce_mean(tf.math.log(tf.sigmoid(real_logits - fake_logits)))
        r1, r2 = penalties
        loss = relativistic + 3.0 / 2 * (r1 + r2)
    gradients = {"discriminator": tape.gradient(loss, critic.trainable_variables)}
    metrics, _ = stage_step(run)(0, 0, {**data_of(run), "labels": labels})
    critic.set_weights(run.state.networks["discriminator"].get_weights())  # the generator sees the new one
    with tf.GradientTape() as tape:
        difference = critic([generator([batch.latents, labels]), labels]) - critic([batch.images, labels])
        fooled = -tf.reduce_mean(tf.math.log(tf.sigmoid(difference)))
    gradients["generator"] = tape.gradient(fooled, generator.trainable_variables)
    expected = {"loss": loss, "relativistic": relativistic, "r1": r1, "r2": r2}
    for name, value in {**{f"judge/{key}": each for key, each in expected.items()}, "fool/loss": fooled}.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4)
    after = values_of(run)
    for name, each in gradients.items():
        for variable, gradient in zip(run.state.networks[name].trainable_variables, each, strict=True):
            momentum = after[f"optimizers/{name}/{variable.path}/momentum"]
            np.testing.assert_allclose(momentum, gradient, rtol=2e-3, atol=2e-4 * np.abs(gradient).max())
            assert momentum.any()


def test_five_numbers_go_along_half_a_cosine_and_keep_their_last_values():
    burn_in, rest = R3GAN(R3GANOptions(burn_in_steps=101), DataSpec((32, 32, 3), 100)).stages()
    judge, fool = burn_in.updates
    assert (judge.learning_rate, judge.betas) == (fool.learning_rate, fool.betas)
    changing = {**burn_in.schedules, "rate": judge.learning_rate, "beta_2": judge.betas[1]}
    ends = {"rate": (2e-4, 5e-5), "beta_2": (0.9, 0.99), "gamma": (2.0, 0.2), "augment": (0.0, 0.3)}
    ends["ema_half_life"] = (1.0, 500_000.0)
    assert changing.keys() == ends.keys() and judge.betas[0] == 0.0
    for name, (first, last) in ends.items():
        for step in (0, 30, 100):
            decay = 0.5 * (1 + np.cos(np.pi * step / 100))
            value = value_at(changing[name], tf.constant(step, tf.int64), 101, (1, 1))
            assert float(value) == pytest.approx(first + (1 - decay) * (last - first), rel=1e-5, abs=1e-7), name
    assert {(each.learning_rate, each.betas) for each in rest.updates} == {(5e-5, (0.0, 0.99))} and not rest.schedules


def test_arrays_that_are_no_pictures_are_not_augmented():
    burn_in, _ = R3GAN(R3GANOptions(), DataSpec((32, 32, 7), 100)).stages()
    assert burn_in.schedules.keys() == {"gamma", "ema_half_life"}
