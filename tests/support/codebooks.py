"""Codebooks of vector quantisation, and a program that trains them on several ranks and writes what it has found."""

import dataclasses
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from building import data_of, stage_step, tiny_run, values_of
from hvdgan.distributed import joining
from hvdgan.recipe import Recipe, Stage, State, Update
from tiny import TinyOptions

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from my_losses import CODES, nearest, quantised

WIDTH, DECAY, STEPS = 3, 0.8, 12


class Learnt(layers.Layer):
    """Weights that follow the gradient of the layer's own losses (van den Oord et al. 2017, equation 3)."""

    def build(self, shape):
        self.codes = self.add_weight((CODES, shape[-1]), "random_uniform", name="codes")

    def call(self, features):
        chosen = tf.gather(self.codes, nearest(features, self.codes))
        self.add_loss(tf.reduce_mean((chosen - tf.stop_gradient(features)) ** 2))
        self.add_loss(0.25 * tf.reduce_mean((tf.stop_gradient(chosen) - features) ** 2))
        return features + tf.stop_gradient(chosen - features)


class Averaged(layers.Layer):
    """Averages over time of how often a code is chosen, and of what chooses it (the same paper, appendix A.1)."""

    def build(self, shape):
        kept = {"trainable": False, "aggregation": "mean"}
        self.codes = self.add_weight((CODES, shape[-1]), "random_uniform", name="codes", **kept)
        self.sums = self.add_weight((CODES, shape[-1]), "zeros", name="sums", **kept)
        self.shares = self.add_weight((CODES,), "zeros", name="shares", **kept)

    def call(self, features, training=False):
        index = nearest(features, self.codes)
        chosen = tf.gather(self.codes, index)
        if training:
            self.move(tf.one_hot(index, CODES), features)
        return features + tf.stop_gradient(chosen - features)

    def move(self, hot, features):
        """Move the averages by a batch: hot (B, CODES) is 1 at each sample's code, features are (B, width)."""
        self.shares.assign(DECAY * self.shares + (1 - DECAY) * tf.reduce_mean(hot, 0))
        self.sums.assign(DECAY * self.sums + (1 - DECAY) * tf.reduce_mean(hot[:, :, None] * features[:, None], 0))
        self.codes.assign(self.sums / (self.shares[:, None] + 1e-3))


class Coded(Recipe):
    """An autoencoder with a codebook of each kind, for a third of its features each."""

    Options = TinyOptions
    shows_data = True

    def networks(self):
        encoder = [keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(16, "tanh"), layers.Dense(3 * WIDTH)]
        decoder = [keras.Input((3 * WIDTH,)), layers.Dense(16, "tanh"), layers.Dense(64), layers.Reshape((8, 8, 1))]
        networks = {"encoder": encoder, "decoder": decoder}
        networks = {name: keras.Sequential(parts, name=name) for name, parts in networks.items()}
        for kind in (Learnt, Averaged):
            name = kind.__name__.lower()
            networks[name] = keras.Sequential([keras.Input((WIDTH,)), kind(name="book")], name=name)
        return networks

    def optimizers(self):
        return {name: keras.optimizers.SGD(0.1) for name in ("encoder", "decoder", "learnt")}

    def stages(self):
        return [
            Stage("fit", self.options.steps, [Update("fit", ["encoder", "decoder", "learnt", "averaged"], self.fit)])
        ]

    def state(self):
        codes = np.random.default_rng(1).normal(size=(CODES, WIDTH))
        return {"codes": State(codes), "shares": State(np.full(CODES, 1 / CODES))}

    def fit(self, nets, batch):
        first, second, third = tf.split(nets.encoder(batch.images), 3, axis=1)
        codes, new, use = quantised(third, batch)
        codes = third + tf.stop_gradient(codes - third)
        made = nets.decoder(tf.concat([nets.learnt(first), nets.averaged(second), codes], 1))
        return tf.reduce_mean((made - batch.images) ** 2), {"use": use}, new

    def sample(self, nets, batch):
        first, second, third = tf.split(nets.encoder(batch.images), 3, axis=1)
        third = tf.gather(batch.state.codes, nearest(third, batch.state.codes))
        return nets.decoder(tf.concat([nets.learnt(first), nets.averaged(second), third], 1))


def trained(ranks):
    """Everything that a run on 7 samples, in slices of unequal sizes, has at its end, and the use of each step."""
    run = tiny_run(Coded, TinyOptions(steps=STEPS), dataclasses.replace(ranks, slice_unit=1), global_batch_size=7)
    assert not run.steps[0].of_several  # what one rank would note is refused by several
    use = [float(stage_step(run)(step, step, data_of(run, step))[0]["fit/use"]) for step in range(STEPS)]
    return {**values_of(run), "use": np.array(use)}


if __name__ == "__main__":
    ranks = joining.start()
    found = trained(ranks)
    everyones = ranks.gather({name: value.tobytes().hex() for name, value in found.items()}, "values of all ranks")
    assert all(each == everyones[0] for each in everyones)
    if ranks.is_root:
        np.savez(sys.argv[1], **found)
    ranks.shutdown()
