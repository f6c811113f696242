"""MolGAN-TF2: molecules as two arrays, bonds and atoms, both generated; a penalty of the gradients of both."""

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

ATOMS, KINDS, BONDS, LATENTS, WIDTH = 6, 5, 4, 8, 16
PROGRAM = {
    "name": "MolGAN-TF2",
    "needs": "random layers, arrays, sample() of a dict, together",
    "run": "--data {data}:bonds --axes HWC --values none --arrays atoms --axes-of atoms=W --values-of atoms=onehot:5",
}


def arrays():
    """The bond of each pair of atoms, one-hot, and the kind of each atom; bond 0 and kind 0 are none."""
    random = np.random.default_rng(0)
    bonds = np.triu(random.integers(0, BONDS, (24, ATOMS, ATOMS)), 1)
    bonds = np.eye(BONDS, dtype=np.float32)[bonds + bonds.transpose(0, 2, 1)]
    return {"bonds": bonds, "atoms": random.integers(0, KINDS, (24, ATOMS))}


class GraphConvolution(layers.Layer):
    """Sums what neighbours send over each kind of bond (Schlichtkrull et al. 2018)."""

    def __init__(self, units):
        super().__init__()
        self.units = units

    def build(self, bonds_shape, atoms_shape):
        self.sent = self.add_weight((bonds_shape[-1] - 1, atoms_shape[-1], self.units), name="sent")
        self.own = self.add_weight((atoms_shape[-1], self.units), name="own")

    def call(self, bonds, atoms):
        x = tf.einsum("bije,bjc,ecd->bid", bonds[..., 1:], atoms, self.sent)
        return tf.tanh(x + tf.matmul(atoms, self.own))


class MolGAN(Recipe):
    def networks(self):
        bonds, atoms = self.data.shape, self.data.array_shapes["atoms"]
        return {"generator": self.generator(bonds, atoms), "critic": self.critic(bonds, atoms)}

    def generator(self, bonds, atoms):
        x = latents = keras.Input((LATENTS,))
        for factor in (1, 2, 4):
            x = layers.Dropout(0.1)(layers.Dense(factor * WIDTH, activation="tanh")(x))
        edges = layers.Reshape(bonds)(layers.Dense(math.prod(bonds))(x))
        edges = layers.Average()([edges, layers.Permute((2, 1, 3))(edges)])
        nodes = layers.Reshape(atoms)(layers.Dense(math.prod(atoms))(x))
        return keras.Model(latents, [layers.Softmax()(layers.Dropout(0.1)(each)) for each in (edges, nodes)])

    def critic(self, bonds, atoms):
        edges, nodes = keras.Input(bonds), keras.Input(atoms)
        x = nodes
        for units in (WIDTH, WIDTH // 2):
            x = layers.Dropout(0.1)(GraphConvolution(units)(edges, layers.Concatenate()([x, nodes])))
        gates = layers.Dense(WIDTH, activation="sigmoid")(x)
        x = layers.Multiply()([gates, layers.Dense(WIDTH, activation="tanh")(x)])
        x = layers.Activation("tanh")(keras.ops.sum(x, axis=1))
        x = layers.Dropout(0.1)(layers.Dense(WIDTH, activation="tanh")(x))
        return keras.Model([edges, nodes], layers.Dense(1)(x))

    def optimizers(self):
        return {name: keras.optimizers.Adam(1e-3) for name in ("generator", "critic")}

    def stages(self):
        updates = [Update("judge", ["critic"], self.judge), Update("fool", ["generator"], self.fool)]
        return [Stage("train", 10_000, updates, together=True)]

    def draw(self, random):
        return {"latents": random.normal("latents", (LATENTS,))}

    def judge(self, nets, batch):
        real = [batch.images, batch.arrays["atoms"]]
        fake = nets.generator(batch.latents, training=True)
        distance = tf.reduce_mean(nets.critic(fake, training=True)) - tf.reduce_mean(nets.critic(real, training=True))
        mix = tf.random.uniform((real[0].shape[0],))
        points = [mix[:, None, None, None] * real[0] + (1 - mix)[:, None, None, None] * fake[0]]
        points.append(mix[:, None, None] * real[1] + (1 - mix)[:, None, None] * fake[1])
        with tf.GradientTape() as tape:
            tape.watch(points)
            scores = nets.critic(points, training=True)
        slopes = tape.gradient(scores, points)
        penalty = sum(tf.reduce_mean((1 - tf.sqrt(tf.reduce_sum(each**2, -1) + 1e-12)) ** 2) for each in slopes)
        return distance + 10 * penalty, {"distance": distance}

    def fool(self, nets, batch):
        return -tf.reduce_mean(nets.critic(nets.generator(batch.latents, training=True), training=True)), {}

    def sample(self, nets, batch):
        """Molecules of one kind for each bond and each atom."""
        bonds, atoms = nets.generator(batch.latents)
        return {"images": tf.one_hot(tf.argmax(bonds, -1), BONDS), "atoms": tf.one_hot(tf.argmax(atoms, -1), KINDS)}
