"""keras.io's wgan-graphs: molecules as two arrays, both generated; a gradient penalty over both."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

ATOMS, KINDS, BONDS, LATENTS = 6, 4, 5, 8
RUN = "--data {data}:features --axes WC --values none --arrays adjacency --values-of adjacency=onehot:5"
PROGRAM = {"name": "keras.io wgan-graphs", "needs": "random layers, arrays, sample() of a dict", "run": RUN}


def arrays():
    """The kind of each atom, one-hot, and the bond of each pair."""
    random = np.random.default_rng(0)
    kinds = np.eye(KINDS, dtype=np.float32)[random.integers(0, KINDS, (24, ATOMS))]
    bonds = random.integers(0, BONDS, (24, ATOMS, ATOMS))
    return {"features": kinds, "adjacency": np.triu(bonds, 1) + np.triu(bonds, 1).transpose(0, 2, 1)}


class GraphConvolution(layers.Layer):
    """Sums what the neighbours of each kind of bond send (Schlichtkrull et al. 2018)."""

    def __init__(self, units):
        super().__init__()
        self.units = units

    def build(self, adjacency_shape, features_shape):
        shape = (adjacency_shape[-1], features_shape[-1], self.units)
        self.kernel = self.add_weight(shape, initializer="glorot_uniform", name="kernel")
        self.bias = self.add_weight((adjacency_shape[-1], 1, self.units), initializer="zeros", name="bias")

    def call(self, adjacency, features):
        bonds = tf.transpose(adjacency, (0, 3, 1, 2))
        x = tf.matmul(tf.matmul(bonds, features[:, None]), self.kernel) + self.bias
        return tf.nn.relu(tf.reduce_sum(x, axis=1))


def generator():
    x = latents = keras.Input((LATENTS,))
    for width in (16, 32):
        x = layers.Dropout(0.2)(layers.Dense(width, activation="tanh")(x))
    bonds = layers.Reshape((ATOMS, ATOMS, BONDS))(layers.Dense(ATOMS * ATOMS * BONDS)(x))
    bonds = layers.Softmax()((bonds + keras.ops.transpose(bonds, (0, 2, 1, 3))) / 2.0)
    kinds = layers.Softmax()(layers.Reshape((ATOMS, KINDS))(layers.Dense(ATOMS * KINDS)(x)))
    return keras.Model(latents, [bonds, kinds])


def critic():
    bonds, kinds = keras.Input((ATOMS, ATOMS, BONDS)), keras.Input((ATOMS, KINDS))
    x = kinds
    for _ in range(2):
        x = GraphConvolution(16)(bonds, x)
    x = layers.GlobalAveragePooling1D()(x)
    for _ in range(2):
        x = layers.Dropout(0.2)(layers.Dense(32, activation="relu")(x))
    return keras.Model([bonds, kinds], layers.Dense(1)(x))


class GraphWGAN(Recipe):
    def networks(self):
        return {"generator": generator(), "critic": critic()}

    def optimizers(self):
        return {name: keras.optimizers.Adam(5e-4) for name in ("generator", "critic")}

    def stages(self):
        updates = [Update("judge", ["critic"], self.judge), Update("fool", ["generator"], self.fool)]
        return [Stage("train", 10_000, updates)]

    def draw(self, random):
        return {"latents": random.normal("latents", (LATENTS,))}

    def judge(self, nets, batch):
        real = [batch.arrays["adjacency"], batch.images]
        fake = nets.generator(batch.random.normal("latents", (LATENTS,)), training=True)
        cost = tf.reduce_mean(nets.critic(fake, training=True)) - tf.reduce_mean(nets.critic(real, training=True))
        return cost + 10.0 * self.penalty(nets, batch, real, fake), {"cost": cost}

    def penalty(self, nets, batch, real, fake):
        mix = batch.random.uniform("mix", ())
        points = [mix[:, None, None, None] * real[0] + (1.0 - mix)[:, None, None, None] * fake[0]]
        points.append(mix[:, None, None] * real[1] + (1.0 - mix)[:, None, None] * fake[1])
        with tf.GradientTape() as tape:
            tape.watch(points)
            scores = nets.critic(points, training=True)
        slopes = tape.gradient(scores, points)
        of_bonds = tf.reduce_mean((1.0 - tf.sqrt(tf.reduce_sum(slopes[0] ** 2, axis=3) + 1e-12)) ** 2)
        of_kinds = tf.reduce_mean((1.0 - tf.sqrt(tf.reduce_sum(slopes[1] ** 2, axis=2) + 1e-12)) ** 2)
        return of_bonds + of_kinds

    def fool(self, nets, batch):
        return -tf.reduce_mean(nets.critic(nets.generator(batch.latents, training=True), training=True)), {}

    def sample(self, nets, batch):
        bonds, kinds = nets.generator(batch.latents)
        return {"images": kinds, "adjacency": bonds}
