"""Keras-GAN's discogan: translation both ways with cycles; its loader cuts each picture into a pair."""

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update, losses

RUN = "--data synthetic --image-size 16"
PROGRAM = {"name": "Keras-GAN discogan", "needs": "pairs, training=False", "run": RUN}
WIDTHS = (4, 8, 8)  # seven in the program


def halved(x, filters, *, norm=True):
    x = layers.LeakyReLU(0.2)(layers.Conv2D(filters, 4, strides=2, padding="same")(x))
    return layers.GroupNormalization(groups=-1)(x) if norm else x


class DiscoGAN(Recipe):
    paired = True
    shows_data = True

    def networks(self):
        a, b = self.data.input_shape, self.data.shape
        return {
            "to_A": self.generator(b, a[-1]),
            "to_B": self.generator(a, b[-1]),
            "discriminator_A": self.discriminator(a),
            "discriminator_B": self.discriminator(b),
        }

    def generator(self, shape, channels):
        x = image = keras.Input(shape)
        skips = []
        for number, filters in enumerate(WIDTHS):
            x = halved(x, filters, norm=number > 0)
            skips.append(x)
        for filters, skip in zip(WIDTHS[-2::-1], skips[-2::-1], strict=True):
            x = layers.Conv2D(filters, 4, padding="same", activation="relu")(layers.UpSampling2D()(x))
            x = layers.Concatenate()([layers.GroupNormalization(groups=-1)(x), skip])
        x = layers.Conv2D(channels, 4, padding="same", activation="tanh")(layers.UpSampling2D()(x))
        return keras.Model(image, x)

    def discriminator(self, shape):
        x = image = keras.Input(shape)
        for number in range(3):
            x = halved(x, 4 * 2**number, norm=number > 0)
        return keras.Model(image, layers.Conv2D(1, 4, padding="same")(x))

    def optimizers(self):
        names = ("to_A", "to_B", "discriminator_A", "discriminator_B")
        return {name: keras.optimizers.Adam(2e-4, 0.5) for name in names}

    def stages(self):
        updates = [
            Update("real_A", ["discriminator_A"], self.real_a),
            Update("fake_A", ["discriminator_A"], self.fake_a),
            Update("real_B", ["discriminator_B"], self.real_b),
            Update("fake_B", ["discriminator_B"], self.fake_b),
            Update("translate", ["to_A", "to_B"], self.translate_both),
        ]
        return [Stage("train", 20_000, updates)]

    def real_a(self, nets, batch):
        return tf.reduce_mean((nets.discriminator_A(batch.inputs) - 1) ** 2), {}

    def fake_a(self, nets, batch):
        return tf.reduce_mean(nets.discriminator_A(nets.to_A(batch.images, training=False)) ** 2), {}

    def real_b(self, nets, batch):
        return tf.reduce_mean((nets.discriminator_B(batch.images) - 1) ** 2), {}

    def fake_b(self, nets, batch):
        return tf.reduce_mean(nets.discriminator_B(nets.to_B(batch.inputs, training=False)) ** 2), {}

    def translate_both(self, nets, batch):
        a, b = batch.inputs, batch.images
        fake_a, fake_b = nets.to_A(b), nets.to_B(a)
        fool = tf.reduce_mean((nets.discriminator_A(fake_a) - 1) ** 2)
        fool += tf.reduce_mean((nets.discriminator_B(fake_b) - 1) ** 2)
        pairs = losses.absolute_error(a, fake_a) + losses.absolute_error(b, fake_b)
        cycle = losses.absolute_error(a, nets.to_A(fake_b)) + losses.absolute_error(b, nets.to_B(fake_a))
        return fool + pairs + cycle, {"fool": fool, "pairs": pairs, "cycle": cycle}

    def sample(self, nets, batch):
        """Pictures of A, their translations and the way back; then the same of B."""
        a, b = batch.inputs[:16], batch.images[:16]
        fake_a, fake_b = nets.to_A(b), nets.to_B(a)
        rows = [[a, fake_b, nets.to_A(fake_b)], [b, fake_a, nets.to_B(fake_a)]]
        return tf.concat([tf.concat(row, 2) for row in rows], 0)
