"""The recipe vae_gan."""

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.recipe import DataSpec
from hvdgan.recipes.vae_gan import VAEGAN, VAEGANOptions, kl_to_normal


def test_the_divergence_is_zero_for_the_prior_and_else_what_sampling_says():
    assert float(kl_to_normal(tf.zeros((3, 5)), tf.zeros((3, 5)))) == 0
    mean, log_variance = np.array([[0.5, -1.0]], np.float32), np.array([[0.3, -0.7]], np.float32)
    random = np.random.default_rng(0)
    z = mean + np.exp(0.5 * log_variance) * random.normal(size=(200_000, 2))
    log_q = -0.5 * ((z - mean) ** 2 / np.exp(log_variance) + log_variance)
    expected = (log_q + 0.5 * z**2).sum(axis=1).mean()
    assert float(kl_to_normal(tf.constant(mean), tf.constant(log_variance))) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("real_cost", "fake_cost", "discriminator", "decoder"),
    [
        (0.68, 0.68, True, True),
        (0.20, 0.68, False, True),  # far ahead on real images
        (1.20, 0.68, True, False),  # far behind
        (0.20, 1.20, True, True),  # both would wait: none does
    ],
)
def test_who_waits_outside_the_margins(real_cost, fake_cost, discriminator, decoder):
    recipe = VAEGAN(VAEGANOptions(), DataSpec((32, 32, 1), 1))
    metrics = {"real_cost": tf.constant(real_cost), "fake_cost": tf.constant(fake_cost)}
    assert bool(recipe.discriminator_may_step(metrics)) == discriminator
    assert bool(recipe.decoder_may_step(metrics)) == decoder
