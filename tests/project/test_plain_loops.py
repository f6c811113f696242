"""The plain Keras loops of benchmarks/evaluation/plain_loops compute what the recipes compute."""

import dataclasses
import functools
import sys

import keras
import numpy as np
import pytest
from keras import layers

from building import data_of, tiny_run
from hvdgan.networks.equalised import EqualisedDense
from hvdgan.networks.spectral import SpectralDense
from hvdgan.networks.stylegan2 import StyleGAN2Generator, noise_numbers
from hvdgan.recipe.draws import Random
from launching import ROOT

sys.path.insert(0, str(ROOT / "benchmarks" / "evaluation"))
from plain_keras import LOOPS

PERIODS = {
    "dcgan": {"generator": "d_updates"},
    "wgan_gp": {"generator": "n_critic"},
    "sngan": {"generator": "d_updates"},
    "stylegan2": {"r1": "r1_every", "path_length": "path_length_every"},
    "vae_gan": {},
}
"""for each recipe the updates that are not due in every step, and the option that is their period"""
MORE = {"sngan": {"conditional": "none"}, "stylegan2": {"mapping_layers": 2, "path_length_weight": 2.0}}
OF_UPDATES = {
    "wgan_gp": {"mix": lambda random: random.scoped("critic").uniform("mix", ())},
    "stylegan2": {"directions": lambda random: random.scoped("path_length").normal("directions", (8, 8, 1))},
}
"""draws of one update alone"""


def normed(x):
    """A layer with BatchNorm, which gets no constant inputs: their gradients would be rounding errors alone."""
    return layers.LeakyReLU(0.2)(layers.BatchNormalization()(layers.Dense(8, use_bias=False)(x)))


def generator(name):
    """Latents (B, 4) to images (B, 8, 8, 1)."""
    latents = keras.Input((4,))
    pixels = layers.Dense(64, activation="tanh")(normed(latents))
    return keras.Model(latents, layers.Reshape((8, 8, 1))(pixels), name=name)


def discriminator(name, *, norm=True, dense=layers.Dense, features=False):
    """Images (B, 8, 8, 1) to logits (B,), and to features if they are wanted."""
    images = keras.Input((8, 8, 1))
    seen = layers.LeakyReLU(0.2)(dense(8)(layers.Flatten()(images)))
    seen = normed(seen) if norm else seen
    logits = layers.Reshape(())(dense(1)(seen))
    return keras.Model(images, [logits, seen] if features else logits, name=name)


def encoder(name):
    """Images (B, 8, 8, 1) to means and logarithms of variances of their latents, (B, 4) each."""
    images = keras.Input((8, 8, 1))
    seen = normed(layers.Dense(8, activation="relu")(layers.Flatten()(images)))
    return keras.Model(images, [layers.Dense(4)(seen) for _ in range(2)], name=name)


def styled(name):
    """StyleGAN2's generator of 8 pixels."""
    network = StyleGAN2Generator(8, 1, 2, 4, 2, name=name)
    network.build([(1, 2, 4), (1,), (1, noise_numbers(8))])
    return network


def equalised(name):
    """A discriminator with equalised learning rate."""
    dense = [EqualisedDense(8), EqualisedDense(1, linear=True)]
    return keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), *dense, layers.Reshape(())], name=name)


NETWORKS = {
    "dcgan": {"generator": generator, "discriminator": discriminator},
    "wgan_gp": {"generator": generator, "critic": functools.partial(discriminator, norm=False)},
    "sngan": {
        "generator": generator,
        "discriminator": functools.partial(discriminator, norm=False, dense=SpectralDense),
    },
    "stylegan2": {"generator": styled, "discriminator": equalised},
    "vae_gan": {
        "encoder": encoder,
        "decoder": generator,
        "discriminator": functools.partial(discriminator, features=True),
    },
}


@pytest.fixture(scope="module", params=LOOPS)
def pair(request):
    """A recipe's name, its run with small networks, and the loop with equal ones that draws the run's numbers."""
    name = request.param

    class Small(LOOPS[name].recipe):
        def networks(self):
            return {key: make(key) for key, make in NETWORKS[name].items()}

    periods = dict.fromkeys(PERIODS[name].values(), 1)
    options = Small.Options(latent_size=4, learning_rate=1e-3, **periods, **MORE.get(name, {}))
    run = tiny_run(Small, options)
    networks = run.recipe.networks()
    for key, network in networks.items():
        network.set_weights(run.state.networks[key].get_weights())
    loop = LOOPS[name](networks, options)

    def draw(count):
        random = Random(run.config.seed, loop.step.value(), 0, count)
        more = {key: drawn(random) for key, drawn in OF_UPDATES.get(name, {}).items()}
        return {**run.recipe.draw(random.scoped("draw")), **more}

    loop.draw = draw
    return name, run, loop


@pytest.mark.long
def test_a_loop_trains_like_its_recipe(pair):
    """The same losses, weights and averages in each of three steps, in which Adam moves a weight by about 0.001.

    BatchNorm's moving statistics, which are for samples, are another: the loops move them in every call of a network.
    """
    _, run, loop = pair
    unreported = {"r1", "path_length"}
    losses = [f"{each.name}/loss" for each in run.recipe.stages()[0].updates if each.name not in unreported]
    for step in range(3):
        data = data_of(run, step)
        metrics, _ = run.steps[0](step, step, data)
        found = loop.train_step(data["images"], *loop.due(step))
        np.testing.assert_allclose(found, [metrics[each] for each in losses], rtol=1e-4, err_msg=f"step {step}")
        for key, network in loop.networks.items():
            of_recipe = run.state.networks[key].variables
            both = zip(loop.averages.get(key, of_recipe), run.state.ema.get(key, of_recipe), strict=True)
            for mine, other, averages in zip(network.variables, of_recipe, both, strict=True):
                if "/moving_" not in mine.path:
                    what = f"step {step}: {mine.path}"
                    np.testing.assert_allclose(mine, other, rtol=0, atol=1e-4, err_msg=what)
                    np.testing.assert_allclose(*averages, rtol=0, atol=1e-4, err_msg=f"average of {what}")


def test_the_same_updates_are_due(pair):
    name, run, loop = pair
    options = dataclasses.replace(loop.options, **{option: 3 for option in PERIODS[name].values()})
    stage = type(run.recipe)(options, run.recipe.data).stages()[0]
    own = type(loop)(loop.networks, options)
    for step in range(6):
        names = {update.name for update in stage.due(step)}
        assert own.due(step) == tuple(update in names for update in PERIODS[name])


def test_samples_are_drawn_with_averaged_weights(pair):
    """Networks whose weights are all 0 draw grey pictures."""
    _, _, loop = pair
    before = {key: network.get_weights() for key, network in loop.networks.items()}
    for averages in loop.averages.values():
        for average in averages:
            average.assign(np.zeros(average.shape))
    pictures = loop.samples(70)
    assert pictures.shape == (70, 8, 8, 1) and pictures.dtype == np.uint8
    assert set(np.unique(pictures)) == {128}
    for key, network in loop.networks.items():
        assert all(map(np.array_equal, network.get_weights(), before[key]))
