"""The recipe downscale and its networks. Modules: recipes.downscale, networks.downscale"""

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.recipe import Batch, DataSpec, Nets, Random
from hvdgan.recipes.downscale import Downscale, DownscaleOptions

SMALL = {"nf": 2, "blocks": 1, "noise_channels": 3, "steps": 4, "n_critic": 2}
COUNT = 3


def recipe_of(image_shape=(8, 12, 2), input_shape=(2, 3, 3), constants=1, **changes):
    shape = (*image_shape[:2], constants) if constants else None
    data = DataSpec(image_shape, 10, input_shape=input_shape, constants_shape=shape)
    return Downscale(DownscaleOptions(**{**SMALL, **changes}), data)


def batch_of(recipe, update, count=COUNT):
    """A batch of random fields, as an update of this name sees it; constants are (1, H, W, K)."""
    numbers = np.random.default_rng(0)
    data = recipe.data
    images, inputs = (
        tf.constant(numbers.normal(size=(count, *shape)), tf.float32) for shape in (data.shape, data.input_shape)
    )
    constants = data.constants_shape and tf.constant(numbers.normal(size=(1, *data.constants_shape)), tf.float32)
    random = Random(0, tf.constant(0, tf.int64), 0, count)
    drawn = recipe.draw(random.scoped("draw"))
    return Batch(images, None, random.scoped(update), drawn, inputs=inputs, constants=constants)


def test_the_generators_loss_is_minus_the_score_and_the_crps_of_two_members():
    recipe = recipe_of(content_weight=5.0, spectrum_weight=3.0)
    batch, networks = batch_of(recipe, "generator"), recipe.networks()
    noises = [batch.latents, batch.random.normal("other", (2, 3, 3))]
    assert np.abs(noises[0] - noises[1]).min() > 0
    one, other = (networks["generator"]([batch.inputs, noise, batch.constants]) for noise in noises)
    score = np.mean(networks["critic"]([one, batch.inputs, batch.constants]))
    terms = []
    for axis, lag in [(1, 0), *((axis, lag) for axis in (1, 2) for lag in (1, 2, 3))]:
        fields = [np.asarray(each) for each in (batch.images, one, other)]
        if lag:
            places = np.arange(fields[0].shape[axis] - lag)
            fields = [each.take(places + lag, axis) - each.take(places, axis) for each in fields]
        truth, first, second = fields
        terms.append(np.mean((np.abs(first - truth) + np.abs(second - truth) - np.abs(first - second)) / 2))
    crps = np.mean(terms)
    assert len(terms) == 7
    logarithms = [np.log(rings(np.asarray(each))) for each in (batch.images, one, other)]
    apart = [np.abs(logarithms[i] - logarithms[j]).mean() for i, j in ((0, 1), (0, 2), (1, 2))]
    spectrum = (apart[0] + apart[1] - apart[2]) / 2
    nets = Nets(networks, training=True)
    loss, metrics = recipe.fool(nets, batch)
    np.testing.assert_allclose(metrics["content"], crps, rtol=1e-4)
    np.testing.assert_allclose(metrics["spectrum"], spectrum, rtol=1e-3)
    np.testing.assert_allclose(metrics["adversarial"], -score, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(loss, -score + 5 * crps + 3 * spectrum, rtol=1e-4)
    recipe = recipe_of(content_weight=0.0, spectrum_weight=0.0)
    loss, metrics = recipe.fool(nets, batch)
    np.testing.assert_allclose(loss, -score, rtol=1e-4, atol=1e-6)
    assert metrics == {}


def rings(images):
    """Mean power of the modes of each wavenumber of fields (B, H, W, C) that are not periodic, mode by mode."""
    height, width = images.shape[1:3]
    window = np.hanning(height + 1)[:-1, None] * np.hanning(width + 1)[:-1]
    modes = np.fft.fft2(images * window[..., None], axes=(1, 2)) / (height * width)
    powers = {}
    for down in range(height):
        for across in range(width):
            waves = [min(place, size - place) / size for place, size in ((down, height), (across, width))]
            number = round(min(height, width) * np.hypot(*waves))
            powers.setdefault(number, []).append(np.abs(modes[:, down, across]) ** 2)
    return np.stack([np.mean(powers[number], axis=0) for number in range(1, min(height, width) // 2 + 1)])


@pytest.mark.parametrize(("periodic", "axis"), [("both", 1), ("width", 2)])
def test_on_periodic_axes_a_moved_input_gives_the_moved_field_and_the_same_score(periodic, axis):
    recipe = recipe_of((16, 32, 2), (4, 8, 3), periodic=periodic)
    batch, networks = batch_of(recipe, "sample"), recipe.networks()

    def moved(tensor, pixels):
        return tf.roll(tensor, pixels * tensor.shape[axis] // batch.inputs.shape[axis], axis)

    given = [batch.inputs, batch.latents, batch.constants]
    fields = networks["generator"](given)
    np.testing.assert_allclose(
        networks["generator"]([moved(each, 1) for each in given]), moved(fields, 1), rtol=1e-4, atol=1e-5
    )
    # The last features of the critic are 4 pixels high, so a move by half the height is one by whole features.
    half = batch.inputs.shape[axis] // 2
    judged = [fields, batch.inputs, batch.constants]
    scores, others = (networks["critic"]([moved(each, by) for each in judged]) for by in (0, half))
    np.testing.assert_allclose(others, scores, rtol=1e-4, atol=1e-5)
