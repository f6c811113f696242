"""The recipe calo3d. Modules: networks.calo3d"""

import numpy as np
import pytest
import tensorflow as tf

from building import batch_of, data_of, stage_step, tiny_run
from hvdgan.recipes.calo3d import Calo3D, Calo3DOptions
from small import settings, write_showers

SMALL = Calo3DOptions(nf=2, latent_size=4, steps=100, r1_every=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("showers")
    write_showers(folder / "showers.npz")
    return folder


@pytest.fixture
def run(folder):
    return tiny_run(Calo3D, SMALL, **settings("calo3d", folder))


def physical(run, batch):
    """The showers and conditions of a batch in the units of the data, in float64."""
    conditions = np.asarray(run.recipe.data.values.conditions.inverse(batch.conditions.numpy()), np.float64)
    return np.float64(batch.images.numpy()[..., 0]) ** (1 / 0.85), conditions[:, 0], conditions[:, 1]


def seen(cells, energy, features):
    """What the discriminator sees of showers (B, D, H, W), by hand."""
    deposits = cells.sum(axis=(1, 2, 3))
    shares = cells / deposits[:, None, None, None]
    profiles = [shares.sum(axis=others) * 8 for others in ((2, 3), (1, 3), (1, 2))]
    inputs = [np.log1p(512 * shares)[..., None], np.log1p(10 * np.concatenate(profiles, axis=1))]
    return [*inputs, np.log(deposits / energy)[:, None], features]


def features_of(run, batch, energy):
    mean = run.recipe.data.values.conditions.chains[0][0].means[0]
    return np.concatenate([batch.conditions.numpy(), np.log(energy / mean)[:, None]], axis=1)


def percent(errors, free=0.0):
    return 100 * np.maximum(np.abs(errors) - free, 0).mean()


def made_by(run, batch):
    generator = run.state.networks["generator"]
    return generator([batch.latents, batch.noise, batch.conditions], training=True).numpy()


def profiles_of(cells):
    """Shares of layers, rows and columns, (B, D + H + W)."""
    shares = cells / cells.sum(axis=(1, 2, 3), keepdims=True)
    return np.concatenate([shares.sum(axis=others) for others in ((2, 3), (1, 3), (1, 2))], axis=1)


def heads_of(run, inputs):
    outputs = run.state.networks["discriminator"]([tf.constant(each, tf.float32) for each in inputs], training=True)
    return {name: np.float64(output.numpy()) for name, output in outputs.items()}


@pytest.mark.long
def test_the_first_step_of_the_discriminator_is_the_weighted_sum_of_its_four_losses(run):
    batch = batch_of(run, "judge")
    cells, energy, theta = physical(run, batch)
    features = features_of(run, batch, energy)
    fake_cells = np.float64(made_by(run, batch)[..., 0]) ** (1 / 0.85)
    real, fake = (heads_of(run, seen(each, energy, features)) for each in (cells, fake_cells))
    deposits = cells.sum(axis=(1, 2, 3))
    angle_map = run.recipe.data.values.conditions.channel(1)
    expected = {
        "real_fake": np.logaddexp(0, -real["logits"]).mean() + np.logaddexp(0, fake["logits"]).mean(),
        "energy": percent(np.exp(real["energy"]) * deposits / energy - 1),
        "angle": np.abs(angle_map.inverse(real["angles"])[:, 0] - theta).mean(),
        "deposits": percent(np.exp(real["deposits"]) * energy / deposits - 1)
        + percent(real["spread"] - np.abs(np.log(deposits / energy) - real["deposits"]))
        + percent(fake["fake_spread"] - np.abs(np.log(fake_cells.sum(axis=(1, 2, 3)) / energy) - real["deposits"])),
    }
    entropy = profiles_of(cells) * real["profiles"] + profiles_of(fake_cells) * fake["fake_profiles"]
    metrics, _ = stage_step(run)(0, 0, data_of(run))
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[f"judge/{name}"], value, rtol=1e-3, err_msg=name)
    total = 3 * expected["real_fake"] + 0.1 * expected["energy"] + 25 * expected["angle"] + 0.1 * expected["deposits"]
    np.testing.assert_allclose(metrics["judge/loss"], total - entropy.sum(axis=1).mean(), rtol=1e-3)
