"""The recipe stylegan2, and its layers. Modules: networks.equalised"""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvdgan.networks import stylegan2 as networks
from hvdgan.recipe import DataSpec, Nets
from hvdgan.recipes.stylegan2 import StyleGAN2, StyleGAN2Options

SMALL = {"nf": 2, "latent_size": 8, "mapping_layers": 2}
FILTER = np.outer([1, 3, 3, 1], [1, 3, 3, 1]) / 64


def generator(image_size=32, **changes):
    return networks.stylegan2_generator(image_size=image_size, channels=1, **{**SMALL, **changes})


def discriminator(image_size=32, nf=2):
    return networks.stylegan2_discriminator(image_size=image_size, channels=1, nf=nf)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def inputs(count=4, image_size=32, crossover=3):
    crossover = np.full(count, crossover, np.float32)
    return [normal(count, 2, 8), crossover, normal(count, networks.noise_numbers(image_size), seed=1)]


@pytest.mark.parametrize("up", [False, True])
def test_one_convolution_of_scaled_inputs_is_each_samples_own_convolution(up):
    x, kernel, scales = normal(3, 8, 8, 4), normal(3, 3, 4, 5, seed=1), 1 + normal(3, 4, seed=2)
    expected = []
    for image, scale in zip(x, scales, strict=True):
        own = kernel * scale[None, None, :, None]  # equation 1
        own = own / np.sqrt((own**2).sum(axis=(0, 1, 2)) + 1e-8)  # equation 3
        if up:
            # Zeros between the pixels, the convolution, the blur; a transposed convolution mirrors its kernel.
            spread = np.zeros((1, 21, 21, 4), np.float32)
            spread[0, 3:18:2, 3:18:2] = image
            spread = tf.nn.conv2d(spread, own[::-1, ::-1], 1, "VALID")  # 19 pixels
            filters = np.tile(4 * FILTER[..., None, None], (1, 1, 5, 1)).astype(np.float32)
            expected.append(tf.nn.depthwise_conv2d(spread, filters, (1, 1, 1, 1), "VALID")[0])
        else:
            expected.append(tf.nn.conv2d(image[None], own, 1, "SAME")[0])
    result = networks.modulated_convolution(tf.constant(x), tf.constant(kernel), tf.constant(scales), up=up)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_the_style_mean_moves_in_owned_training_calls_alone():
    model = generator()
    before = model.style_mean.numpy()
    Nets({"generator": model}, training=True).generator(inputs())
    Nets({"generator": model}, owned={"generator": []}, training=False).generator(inputs())
    np.testing.assert_array_equal(model.style_mean, before)
    Nets({"generator": model}, owned={"generator": []}, training=True).generator(inputs())
    latents = inputs()[0][:, 0]
    x = latents / np.sqrt(np.mean(latents**2, axis=1, keepdims=True))
    for layer in model.mapping:
        x = layer(x)
    np.testing.assert_allclose(model.style_mean, 0.005 * np.mean(x, axis=0), rtol=1e-4, atol=1e-8)


def test_r1_is_the_squared_gradient_of_a_linear_discriminator():
    weights = normal(32, 32, 1)
    options = StyleGAN2Options(**SMALL, r1_gamma=3.0, r1_every=16)
    batch = SimpleNamespace(images=tf.constant(normal(5, 32, 32, 1)), augment=lambda images, key: images)
    nets = SimpleNamespace(discriminator=lambda images: tf.reduce_sum(images * weights, axis=(1, 2, 3)) + 7.0)
    loss, metrics = StyleGAN2(options, DataSpec((32, 32, 1), 1)).r1(nets, batch)
    assert float(metrics["penalty"]) == pytest.approx(np.sum(weights**2), rel=1e-4)
    assert float(loss) == pytest.approx(3.0 / 2 * 16 * np.sum(weights**2), rel=1e-4)


@pytest.mark.long
def test_path_lengths_are_equation_4():
    keras.utils.set_random_seed(0)  # finite differences across kinks of other weights may be off by more
    model = generator()
    directions = normal(4, 32, 32, 1, seed=5)
    latents, crossover, noise = inputs()
    x = latents / np.sqrt(np.mean(latents**2, axis=2, keepdims=True))
    for layer in model.mapping:
        x = layer(x)
    styles = tf.where(np.arange(8)[None, :, None] < crossover[:, None, None], x[:, :1], x[:, 1:])
    jacobian = []
    for place in range(8):  # each style's number by its own: the difference of two images
        for number in range(8):
            step = np.zeros((1, 8, 8), np.float32)
            step[0, place, number] = 2e-3
            change = model.synthesise(styles + step, noise) - model.synthesise(styles - step, noise)
            jacobian.append(np.sum(change / 4e-3 * directions, axis=(1, 2, 3)) / 32)
    lengths = np.sqrt(np.sum(np.square(jacobian), axis=0) / 8)
    penalties = model([latents, crossover, noise], directions=directions)
    np.testing.assert_allclose(penalties, lengths**2, rtol=0.05)  # their running mean is still 0
    penalties = Nets({"generator": model}, owned={"generator": []}, training=True).generator(
        [latents, crossover, noise], directions=directions
    )
    mean = float(model.path_length)
    assert mean == pytest.approx(0.01 * np.mean(lengths), rel=0.05)
    np.testing.assert_allclose(penalties, (lengths - mean) ** 2, rtol=0.05)
