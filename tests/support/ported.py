"""Recipes with the Keras networks of tests/support/of_pytorch, and one whose layers keep statistics."""

import keras
import tensorflow as tf
from keras import layers

from tiny import Tiny


def generator():
    """The same as Generator of make.py."""
    x = given = keras.Input((6,))
    x = layers.Reshape((1, 1, 6))(x)
    for filters, stride, padding in ((8, 1, "valid"), (4, 2, "same")):
        x = layers.Conv2DTranspose(filters, 4, stride, padding, use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(epsilon=1e-5)(x))
    return keras.Model(given, layers.Conv2DTranspose(1, 4, 2, "same", use_bias=False, activation="tanh")(x))


def residual():
    """The same as Residual of make.py."""
    given = keras.Input((4, 4, 3))
    x = layers.Conv2D(8, 3, padding="same", name="stem")(given)
    for block in ("block_0", "block_1"):
        y = layers.Conv2D(8, 3, padding="same", groups=2, use_bias=False, name=f"{block}_conv1")(x)
        y = layers.ReLU()(layers.BatchNormalization(epsilon=1e-5, name=f"{block}_bn1")(y))
        y = layers.Conv2D(8, 3, padding="same", groups=4, name=f"{block}_conv2")(y)
        x = layers.ReLU()(x + layers.BatchNormalization(epsilon=1e-5, name=f"{block}_bn2")(y))
    x = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="depth")(x)
    x = layers.Flatten()(layers.ReLU()(layers.Conv2DTranspose(4, 2, 2, name="up")(x)))
    return keras.Model(given, layers.Dense(5, name="head")(x))


def lpips(channels=(64, 192, 384, 256, 256)):
    """The distance of the package lpips with AlexNet, of two pictures in [-1, 1]: (B,)."""
    pairs = [keras.Input((None, None, 3)) for _ in range(2)]
    scales = [0.458, 0.448, 0.450]
    shifts = [0.030 / 0.458, 0.088 / 0.448, 0.188 / 0.450]
    one, other = (layers.Rescaling([1 / each for each in scales], shifts)(each) for each in pairs)
    distances = []
    for number, (filters, size) in enumerate(zip(channels, (11, 5, 3, 3, 3), strict=True)):
        parts = [layers.MaxPooling2D(3, 2)] if number in (1, 2) else []
        parts += [layers.ZeroPadding2D(2 if number < 2 else 1)]
        parts += [layers.Conv2D(filters, size, 1 if number else 4, activation="relu", name=f"conv_{number + 1}")]
        for part in parts:
            one, other = part(one), part(other)
        norm = layers.UnitNormalization(axis=-1)
        weighted = layers.Conv2D(1, 1, use_bias=False, name=f"lin_{number}")((norm(one) - norm(other)) ** 2)
        distances.append(layers.GlobalAveragePooling2D()(weighted))
    return keras.Model(pairs, keras.ops.squeeze(layers.Add()(distances), -1))


class Perceptual(Tiny):
    """The generator's loss has a distance whose weights --init-from names."""

    def networks(self):
        distance = lpips((4, 12, 24, 16, 16))
        distance.trainable = False
        return {**super().networks(), "lpips": distance}

    def fool(self, nets, batch):
        pairs = [tf.repeat(each, 3, -1) for each in (batch.images, nets.generator(batch.latents))]
        return super().fool(nets, batch)[0] + tf.reduce_mean(nets.lpips(pairs)), {}


class Ported(Tiny):
    """The discriminator's update trains the residual network, too."""

    def networks(self):
        return {**super().networks(), "generator": generator(), "residual": residual()}

    def optimizers(self):
        return {**super().optimizers(), "residual": keras.optimizers.Adam(1e-3)}

    def stages(self):
        (stage,) = super().stages()
        stage.updates[0].owns.append("residual")
        return [stage]

    def draw(self, random):
        return {"latents": random.normal("latents", (6,))}

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        return loss + tf.reduce_mean(tf.square(nets.residual(tf.repeat(batch.images[:, :4, :4], 3, -1)))), metrics


class Normalised(Tiny):
    """A discriminator whose statistics move in each call."""

    def networks(self):
        parts = [layers.Flatten(), layers.SpectralNormalization(layers.Dense(16, name="inner"), name="block_0")]
        parts += [layers.BatchNormalization(name="block_1"), layers.LeakyReLU(0.2), layers.Dense(1, name="head")]
        judge = keras.Sequential([keras.Input((8, 8, 1)), *parts], name="discriminator")
        return {**super().networks(), "discriminator": judge}
