"""ydata's TimeGAN: sequences by five recurrent networks in three stages; two optimizers for three of the networks."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

PROGRAM = {
    "name": "ydata TimeGAN",
    "needs": "two optimizers for a network, three stages, only_if",
    "run": "--data {data}:series --axes WC --values none --stages embed=1,supervise=1,joint=2",
}
HIDDEN, DEPTH = 6, 1  # 24 and 3 in the program
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)


def arrays():
    """Sines of random frequencies in [0, 1]."""
    random = np.random.default_rng(0)
    angles = random.uniform(0.1, 1, (24, 1, 3)) * np.arange(8)[:, None] + random.uniform(0, 6, (24, 1, 3))
    return {"series": (0.5 + 0.5 * np.sin(angles)).astype(np.float32)}


def recurrent(shape, units, activation=None):
    cells = [layers.GRU(HIDDEN, return_sequences=True) for _ in range(DEPTH)]
    return keras.Sequential([keras.Input(shape), *cells, layers.Dense(units, activation=activation)])


class TimeGAN(Recipe):
    def networks(self):
        shape = self.data.shape
        hidden = (shape[0], HIDDEN)
        return {
            "embedder": recurrent(shape, HIDDEN, "sigmoid"),
            "recovery": recurrent(hidden, shape[1], "sigmoid"),
            "generator": recurrent(shape, HIDDEN, "sigmoid"),
            "supervisor": recurrent(hidden, HIDDEN, "sigmoid"),
            "discriminator": recurrent(hidden, 1),
        }

    def optimizers(self):
        two = ("embedder", "recovery", "supervisor")
        found = {name: {each: keras.optimizers.Adam(5e-4) for each in ("alone", "joint")} for name in two}
        return found | {name: keras.optimizers.Adam(5e-4) for name in ("generator", "discriminator")}

    def stages(self):
        autoencoder = ["embedder", "recovery"]
        joint = [
            Update("fool", ["generator", "supervisor"], self.fool, optimizer="joint"),
            Update("embed", autoencoder, self.embed_again, optimizer="joint"),
            Update("judge", ["discriminator"], self.judge, every=2, only_if=lambda metrics: metrics["loss"] > 0.15),
        ]
        return [
            Stage("embed", 50_000, [Update("embed", autoencoder, self.embed, optimizer="alone")]),
            Stage("supervise", 50_000, [Update("supervise", ["supervisor"], self.supervise, optimizer="alone")]),
            Stage("joint", 100_000, joint),
        ]

    def draw(self, random):
        return {"noise": random.uniform("noise", self.data.shape)}

    def error(self, batch, wanted, given):
        """The mean square of the whole batch, whose root is no mean."""
        return batch.mean(tf.reduce_mean((wanted - given) ** 2, (1, 2)))

    def moments(self, batch, x):
        mean = batch.mean(x)
        return mean, tf.sqrt(batch.mean((x - mean) ** 2) + 1e-6)

    def embed(self, nets, batch):
        error = self.error(batch, batch.images, nets.recovery(nets.embedder(batch.images)))
        return 10 * tf.sqrt(error), {"error": error}

    def one_step_ahead(self, nets, batch):
        codes = nets.embedder(batch.images)
        return self.error(batch, codes[:, 1:], nets.supervisor(codes)[:, :-1])

    def supervise(self, nets, batch):
        return self.one_step_ahead(nets, batch), {}

    def embed_again(self, nets, batch):
        loss, metrics = self.embed(nets, batch)
        return loss + 0.1 * self.one_step_ahead(nets, batch), metrics

    def fool(self, nets, batch):
        raw = nets.generator(batch.noise)
        made = nets.supervisor(raw)
        scores, raw_scores = nets.discriminator(made), nets.discriminator(raw)
        fool = cross_entropy(tf.ones_like(scores), scores) + cross_entropy(tf.ones_like(raw_scores), raw_scores)
        pairs = zip(self.moments(batch, nets.recovery(made)), self.moments(batch, batch.images), strict=True)
        moments = sum(tf.reduce_mean(tf.abs(a - b)) for a, b in pairs)
        ahead = self.one_step_ahead(nets, batch)
        return fool + 100 * tf.sqrt(ahead) + 100 * moments, {"ahead": ahead, "moments": moments}

    def judge(self, nets, batch):
        raw = nets.generator(batch.noise)
        codes = (nets.embedder(batch.images), nets.supervisor(raw), raw)
        real, made, raw = (nets.discriminator(each) for each in codes)
        loss = cross_entropy(tf.ones_like(real), real)
        return loss + cross_entropy(tf.zeros_like(made), made) + cross_entropy(tf.zeros_like(raw), raw), {}

    def sample(self, nets, batch):
        return nets.recovery(nets.supervisor(nets.generator(batch.noise)))
