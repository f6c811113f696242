"""The recipe pix2pix."""

import numpy as np
import pytest
import tensorflow as tf

from building import data_of, tiny_run
from hvdgan.recipe import Batch, Nets, Random
from hvdgan.recipe.batch import unpack
from hvdgan.recipes.pix2pix import Pix2Pix, Pix2PixOptions

ALL = "images=l1:100,half=mse:3,quarter=bce:0.5"


def options(**changes):
    return Pix2PixOptions(**{"nf": 2, **changes})


def pix2pix_run(settings=None, **changes):
    return tiny_run(Pix2Pix, options(**changes), image_size=32, **(settings or {}))


def batch_of(run, update="fool"):
    """The batch of the first step, as an update of this name sees it."""
    random = Random(run.config.seed, tf.constant(0, tf.int64), 0, 16)
    images, inputs, _ = unpack(data_of(run)["images"], run.recipe.data)
    return Batch(images, None, random.scoped(update), run.recipe.draw(random.scoped("draw")), inputs=inputs)


def test_the_outputs_are_reported_by_name_and_weighted():
    """By hand, with numpy, from what the generator gives."""
    run = pix2pix_run(outputs=ALL)
    batch = batch_of(run)
    nets = Nets(run.state.networks, training=True)
    outputs = nets.generator([batch.inputs, batch.keep_2, batch.keep_4, batch.keep_8])
    loss, metrics = run.recipe.fool(nets, batch)
    assert set(metrics) == {"adversarial", "images_l1", "half_mse", "quarter_bce"}
    images = batch.images.numpy().astype(np.float64)
    half = images.reshape(16, 16, 2, 16, 2, 1).mean(axis=(2, 4))
    quarter = images.reshape(16, 8, 4, 8, 4, 1).mean(axis=(2, 4))
    yes, wanted = (outputs["quarter"].numpy() + 1) / 2, (quarter + 1) / 2
    expected = {
        "images_l1": np.abs(outputs["images"] - images).mean(),
        "half_mse": np.square(outputs["half"] - half).mean(),
        "quarter_bce": -np.mean(wanted * np.log(yes) + (1 - wanted) * np.log(1 - yes)),
        "adversarial": np.log1p(np.exp(-nets.discriminator([batch.inputs, outputs["images"]]))).mean(),
    }
    for name, value in expected.items():
        assert float(metrics[name]) == pytest.approx(value, rel=1e-4), name
    total = 100 * expected["images_l1"] + 3 * expected["half_mse"] + 0.5 * expected["quarter_bce"]
    assert float(loss) == pytest.approx(total + expected["adversarial"], rel=1e-4)
