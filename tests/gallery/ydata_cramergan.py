"""ydata's CramerGAN: rows of a table, by the energy distance between features of a critic with Dropout."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

RUN = "--data {data}:rows --values standard"
PROGRAM = {"name": "ydata CramerGAN", "needs": "random layers, tf.random in losses, together", "run": RUN}
LATENTS, WIDTH = 8, 16


def arrays():
    """Rows of numbers of any size."""
    return {"rows": np.random.default_rng(0).normal(3, 5, (24, 7)).astype(np.float32)}


def witness(features, other):
    """How much farther features are from those of the second fakes than from 0 (Bellemare et al. 2017)."""
    return tf.norm(features - other, axis=1) - tf.norm(features, axis=1)


class CramerGAN(Recipe):
    def networks(self):
        generator, critic = [keras.Input((LATENTS,))], [keras.Input(self.data.shape)]
        for factor in (1, 2, 4):
            generator.append(layers.Dense(factor * WIDTH, activation="relu"))
        for factor in (4, 2, 1):
            critic += [layers.Dense(factor * WIDTH, activation="relu"), layers.Dropout(0.1)]
        generator.append(layers.Dense(self.data.shape[0]))
        return {"generator": keras.Sequential(generator), "critic": keras.Sequential([*critic, layers.Dense(WIDTH)])}

    def optimizers(self):
        return {name: keras.optimizers.Adam(5e-4, 0.5, 0.9) for name in ("generator", "critic")}

    def stages(self):
        updates = [Update("judge", ["critic"], self.judge), Update("fool", ["generator"], self.fool)]
        return [Stage("train", 10_000, updates, together=True)]

    def draw(self, random):
        return {"noise": random.normal("noise", (LATENTS,)), "other": random.normal("other", (LATENTS,))}

    def judge(self, nets, batch):
        fake = nets.generator(batch.noise, training=True)
        real, made = nets.critic(batch.images, training=True), nets.critic(fake, training=True)
        other = nets.critic(nets.generator(batch.other, training=True), training=True)
        surrogate = tf.reduce_mean(witness(real, other) - witness(made, other))
        mix = tf.random.uniform((tf.shape(fake)[0], 1))
        points = mix * batch.images + (1 - mix) * fake
        with tf.GradientTape() as tape:
            tape.watch(points)
            values = witness(nets.critic(points, training=True), other)
        penalty = tf.reduce_mean((tf.norm(tape.gradient(values, points), axis=1) - 1) ** 2)
        return 10 * penalty - surrogate, {"surrogate": surrogate, "penalty": penalty}

    def fool(self, nets, batch):
        real = nets.critic(batch.images, training=True)
        made = nets.critic(nets.generator(batch.noise, training=True), training=True)
        other = nets.critic(nets.generator(batch.other, training=True), training=True)
        distance = tf.norm(real - made, axis=1) + tf.norm(real - other, axis=1) - tf.norm(made - other, axis=1)
        return tf.reduce_mean(distance), {}

    def sample(self, nets, batch):
        return nets.generator(batch.noise)
