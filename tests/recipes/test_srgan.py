"""The recipe srgan."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from building import changed, data_of, stage_step, tiny_run, values_of
from frozen_parts import make_features, write_vgg19
from hvdgan.recipe import Batch, DataSpec, Nets, Random
from hvdgan.recipes.srgan import SRGAN, SRGANOptions


def options(**changes):
    return SRGANOptions(**{"nf": 2, "blocks": 1, "pixel_steps": 2, "steps": 2, **changes})


def smooth(num=2, size=16):
    """Pictures in [-1, 1] whose details are coarser than four pixels."""
    places = np.arange(size) / size
    waves = [0.8 * np.sin(2 * np.pi * (places[:, None] + k * places)) for k in range(1, num + 1)]
    return np.stack(waves).astype(np.float32)[..., None]


def batch_of(images):
    return Batch(tf.constant(images), None, Random(0, tf.constant(0, tf.int64), 0, len(images)), {})


@pytest.mark.long
def test_the_stages_train_by_pixels_then_by_features_and_the_discriminator(tmp_path):
    make_features().save(tmp_path / "features.keras")
    run = tiny_run(SRGAN, options(features=str(tmp_path / "features.keras")), image_size=8)
    before = values_of(run)
    stage_step(run)(0, 0, data_of(run))
    assert {name.split("/")[1] for name in changed(before, values_of(run))} == {"generator"}
    batch = batch_of(smooth(size=8))
    nets = Nets(run.state.networks, frozen=run.state.frozen, training=True)
    made = nets.generator(tf.nn.avg_pool2d(batch.images, 4, 4, "VALID"))
    loss, metrics = run.recipe.fool(nets, batch)
    features = [run.state.frozen["features"](each, training=False).numpy() for each in (batch.images, made)]
    assert float(metrics["content"]) == pytest.approx(np.square(features[0] - features[1]).mean(), rel=1e-4)
    adversarial = np.log1p(np.exp(-nets.discriminator(made).numpy())).mean()
    assert float(loss) == pytest.approx(float(metrics["content"]) + 1e-3 * adversarial, rel=1e-4)
    error = float(run.recipe.restore(nets, batch)[0])
    assert error == pytest.approx(np.square(made.numpy() - batch.images.numpy()).mean(), rel=1e-4)


@pytest.mark.long
def test_a_network_of_keras_applications_serves_as_the_page_shows(tmp_path, monkeypatch):
    """A small network in the place of VGG19's, with its layers' names, and its preparation of pictures."""
    given = keras.Input((None, None, 3))
    x = keras.layers.Conv2D(4, 3, activation="relu", name="block1_conv1")(given)
    small = keras.Model(given, keras.layers.Conv2D(4, 3, activation="relu", name="block5_conv4")(x))
    monkeypatch.setattr(keras.applications, "VGG19", lambda include_top: small)
    monkeypatch.chdir(tmp_path)
    write_vgg19()
    run = tiny_run(SRGAN, options(features="vgg19.keras"), image_size=16, channels=3)
    images = np.repeat(smooth(), 3, -1)
    nets = Nets(run.state.networks, frozen=run.state.frozen, training=True)
    seen = (127.5 * (images + 1))[..., ::-1] - np.array([103.939, 116.779, 123.68], np.float32)
    np.testing.assert_allclose(nets.features(images), small(seen), atol=1e-2)
    before = [each.tobytes() for each in run.state.frozen["features"].get_weights()]
    metrics, finite = stage_step(run, 1)(2, 0, data_of(run))
    assert all(finite) and metrics["fool/content"] > 0.0
    assert [each.tobytes() for each in run.state.frozen["features"].get_weights()] == before


def test_held_out_pictures_are_compared_with_bicubic_enlargement():
    recipe, images = SRGAN(options(), DataSpec((16, 16, 1), 1)), smooth()
    seen = []

    class Spy:
        def generator(self, small):
            seen.append(small)
            return tf.constant(images + 0.1)

    scores = recipe.evaluate(Spy(), batch_of(images))
    np.testing.assert_allclose(seen[0], images.reshape(2, 4, 4, 4, 4, 1).mean((2, 4)), atol=1e-6)
    np.testing.assert_allclose(scores["psnr"], 10 * np.log10(4 / 0.01), rtol=1e-4)
    # The second wave is too fine for 4 x 4 pixels.
    assert 18 < scores["bicubic_psnr"][0] < 25 and scores["bicubic_psnr"][1] < 15
    assert scores["bicubic_ssim"].shape == (2,)
    shown = recipe.sample(Spy(), batch_of(images))
    np.testing.assert_array_equal(shown[:, :, 32:], images)
    assert shown.shape == (2, 16, 48, 1) and not np.array_equal(shown[:, :, :16], images)
