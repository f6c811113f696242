"""Keras-GAN's dualgan: translation of vectors without pairs, by two critics with clipped weights."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

PROGRAM = {
    "name": "Keras-GAN dualgan",
    "needs": "random layers, clip_weights, domains, training=False",
    "run": "--data {data} --sync-batch-norm",
}
WIDTH, STEPS_OF_CRITIC = 8, 3  # 256 and 4 in the program


def arrays():
    """Vectors of two domains."""
    random = np.random.default_rng(0)
    return {name: random.uniform(-1, 1, (24, 64)).astype(np.float32) for name in "AB"}


def dense(units):
    return [layers.Dense(units), layers.LeakyReLU(0.2)]


class DualGAN(Recipe):
    domains = ("A", "B")
    shows_data = True

    def networks(self):
        return {
            "to_A": self.generator(),
            "to_B": self.generator(),
            "critic_A": self.critic(),
            "critic_B": self.critic(),
        }

    def generator(self):
        made = [keras.Input(self.data.shape)]
        for units in (WIDTH, 2 * WIDTH, 4 * WIDTH):
            made += [*dense(units), layers.BatchNormalization(momentum=0.8), layers.Dropout(0.4)]
        return keras.Sequential([*made, layers.Dense(self.data.shape[0], activation="tanh")])

    def critic(self):
        made = [keras.Input(self.data.shape), *dense(2 * WIDTH), *dense(WIDTH)]
        return keras.Sequential([*made, layers.BatchNormalization(momentum=0.8), layers.Dense(1)])

    def optimizers(self):
        return {name: keras.optimizers.Adam(2e-4, 0.5) for name in ("to_A", "to_B", "critic_A", "critic_B")}

    def stages(self):
        updates = [
            Update("real_A", ["critic_A"], self.real_a),
            Update("fake_A", ["critic_A"], self.fake_a, clip_weights=0.01),
            Update("real_B", ["critic_B"], self.real_b),
            Update("fake_B", ["critic_B"], self.fake_b, clip_weights=0.01),
            Update("translate", ["to_A", "to_B"], self.translate_both, every=STEPS_OF_CRITIC),
        ]
        return [Stage("train", 30_000, updates)]

    def real_a(self, nets, batch):
        return -tf.reduce_mean(nets.critic_A(batch.domains["A"].images)), {}

    def real_b(self, nets, batch):
        return -tf.reduce_mean(nets.critic_B(batch.domains["B"].images)), {}

    def fake_a(self, nets, batch):
        return tf.reduce_mean(nets.critic_A(nets.to_A(batch.domains["B"].images, training=False))), {}

    def fake_b(self, nets, batch):
        return tf.reduce_mean(nets.critic_B(nets.to_B(batch.domains["A"].images, training=False))), {}

    def translate_both(self, nets, batch):
        a, b = batch.domains["A"].images, batch.domains["B"].images
        fake_a, fake_b = nets.to_A(b), nets.to_B(a)
        error = tf.reduce_mean(tf.abs(nets.to_A(fake_b) - a)) + tf.reduce_mean(tf.abs(nets.to_B(fake_a) - b))
        # A layer that is not trainable, as those of the program's combined model, normalises as in inference.
        score = tf.reduce_mean(nets.critic_A(fake_a, training=False))
        score += tf.reduce_mean(nets.critic_B(fake_b, training=False))
        return 100 * error - score, {"error": error}

    def sample(self, nets, batch):
        """Vectors of B, made of those of A."""
        return nets.to_B(batch.domains["A"].images)
