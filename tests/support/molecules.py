"""GANs whose samples are several arrays, and data for them; tests name them as molecules:Molecules."""

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import losses
from tiny import Tiny

FLAGS = "--recipe molecules:Molecules --data m.npz:adjacency --arrays features --axes-of features=WC".split()
FLAGS += "--values none --values-of features=range:0,2 --global-batch-size 8 --log-every 1 --report never".split()


class Molecules(Tiny):
    """The bonds of each two atoms, and the kinds of the atoms, which a network makes and another judges together."""

    ema = ()

    def networks(self):
        latents = keras.Input((4,), name="latents")
        x = layers.Dense(8, "relu")(latents)
        made, seen = [], []
        for name, shape in (("images", self.data.shape), ("features", self.data.array_shapes["features"])):
            made.append(layers.Softmax(name=name)(layers.Reshape(shape)(layers.Dense(math.prod(shape))(x))))
            seen.append(keras.Input(shape, name=name))
        joined = layers.Concatenate()([layers.Flatten()(each) for each in seen])
        return {"generator": keras.Model(latents, made), "discriminator": keras.Model(seen, layers.Dense(1)(joined))}

    def draw(self, random):
        return {"latents": random.normal("latents", (4,))}

    def judge(self, nets, batch):
        real = nets.discriminator([batch.images, batch.arrays["features"]])
        fake = nets.discriminator(nets.generator(batch.latents))
        return losses.non_saturating_discriminator(real, fake), {"atoms": tf.reduce_mean(batch.arrays["features"])}

    def sample(self, nets, batch):
        images, features = nets.generator(batch.latents)
        return {"images": images, "features": features}

    def features(self, nets, batch):
        """How many bonds and atoms of each kind there are."""
        return tf.concat([tf.reduce_sum(batch.images, (1, 2)), tf.reduce_sum(batch.arrays["features"], 1)], -1)


class Forgetful(Molecules):
    """Samples without the atoms, of which features() needs the kinds."""

    def sample(self, nets, batch):
        return {"images": nets.generator(batch.latents)[0]}


class Reversing(Molecules):
    """The atoms of a molecule of the data, the last first, with other bonds."""

    shows_data = True

    def sample(self, nets, batch):
        return {"images": nets.generator(batch.latents)[0], "features": batch.arrays["features"][:, ::-1]}


class Masked(Tiny):
    """Pictures with a mask that the data do not have, half as large, white where the picture is bright."""

    def sample(self, nets, batch):
        images = nets.generator(batch.latents)
        return {"images": images, "mask": images[:, ::2, ::2], "mean": tf.reduce_mean(images, (1, 2, 3))}


def write_molecules(path, count=64):
    """Write random kinds of bonds, (N, 9, 9, 5), and of atoms, (N, 9, 6), as ones of a one-hot code."""
    numbers = np.random.default_rng(0)
    adjacency, features = (np.eye(kinds, dtype=np.float32) for kinds in (5, 6))
    np.savez(
        path,
        adjacency=adjacency[numbers.integers(0, 5, (count, 9, 9))],
        features=features[numbers.integers(0, 6, (count, 9))],
    )
