"""A recipe with the Keras networks of tests/support/of_pytorch, and one whose layers keep statistics."""

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
