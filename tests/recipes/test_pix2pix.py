"""The recipe pix2pix."""

import numpy as np
import pytest

from building import batch_of, tiny_run
from hvdgan.errors import UserError
from hvdgan.recipe import Nets
from hvdgan.recipes.pix2pix import Pix2Pix, Pix2PixOptions
from hvdgan.settings.data import ArrayConfig


def test_the_outputs_are_reported_by_name_and_weighted():
    """By hand, with numpy, from what the generator gives."""
    options = Pix2PixOptions(nf=2, outputs="images=l1:100,half=mse:3,quarter=bce:0.5")
    run = tiny_run(Pix2Pix, options, image_size=32)
    batch = batch_of(run, "fool")
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


def test_arrays_that_are_no_pictures_are_refused(tmp_path):
    np.savez(tmp_path / "pairs.npz", **{name: np.zeros((20, 32, 32, 1), np.float32) for name in ("inputs", "images")})
    settings = {"arrays": ArrayConfig(values="none", input_values="none"), "image_size": None}
    with pytest.raises(UserError, match="the recipe takes 8-bit pictures"):
        tiny_run(Pix2Pix, Pix2PixOptions(nf=2), data=str(tmp_path / "pairs.npz"), **settings)
