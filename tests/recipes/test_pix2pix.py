"""The recipe pix2pix."""

import numpy as np
import pytest
import tensorflow as tf

from building import data_of, tiny_run
from hvdgan.networks.pix2pix import unet_generator
from hvdgan.recipe import Batch, DataSpec, Nets, Random, UserError
from hvdgan.recipe.batch import unpack
from hvdgan.recipes.pix2pix import Pix2Pix, Pix2PixOptions

ALL = "images=l1:100,half=mse:3,quarter=bce:0.5"


def options(**changes):
    return Pix2PixOptions(**{"nf": 2, **changes})


def recipe_of(image_size=32, **changes):
    return Pix2Pix(options(**changes), DataSpec((image_size, image_size, 1), 1))


def pix2pix_run(settings=None, **changes):
    return tiny_run(Pix2Pix, options(**changes), image_size=32, **(settings or {}))


def batch_of(run, update="fool"):
    """The batch of the first step, as an update of this name sees it."""
    random = Random(run.config.seed, tf.constant(0, tf.int64), 0, 16)
    images, inputs, _ = unpack(data_of(run)["images"], run.recipe.data)
    return Batch(images, None, random.scoped(update), run.recipe.draw(random.scoped("draw")), inputs=inputs)


def kernels(network):
    return {layer.name: layer for layer in network.layers if hasattr(layer, "kernel_size")}


def test_at_256_pixels_the_u_net_is_that_of_the_paper():
    network = unet_generator(image_size=256, channels=3, nf=64)
    down = [layer for name, layer in kernels(network).items() if name.startswith("down")]
    up = [layer for name, layer in kernels(network).items() if name.startswith(("up", "to_image"))]
    assert [layer.filters for layer in down] == [64, 128, 256, 512, 512, 512, 512, 512]
    assert down[-1].output.shape == (None, 1, 1, 512)
    assert [layer.input.shape[-1] for layer in up] == [512, 1024, 1024, 1024, 1024, 512, 256, 128]
    assert all(layer.kernel_size == (4, 4) and layer.strides == (2, 2) for layer in down + up)
    assert [tuple(mask.shape[1:]) for mask in network.inputs[1:]] == [(2, 2, 512), (4, 4, 512), (8, 8, 512)]
    without_norm = [layer.name for layer in down + up if f"{layer.name}_norm" not in {x.name for x in network.layers}]
    assert without_norm == ["down_128", "down_1", "to_image"]
    # The known 54,425,859 with BatchNorm in the innermost layer (4 * 512) and without biases (64, 512) down.
    assert network.count_params() == 54_425_859 - 4 * 512 + 64 + 512


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


@pytest.mark.parametrize("part", ["third=l1:1"])
def test_outputs_that_cannot_be_are_refused_with_what_can(part):
    with pytest.raises(UserError) as caught:
        recipe_of(outputs=f"images=mse:1,{part}").networks()
    message = str(caught.value)
    assert message.startswith(f'--outputs images=mse:1,{part}: "{part.rpartition(",")[2]}" is not NAME=LOSS:WEIGHT')
    assert "one of images, half, quarter, LOSS one of l1, mse, bce" in message and "\n" not in message
