"""A GAN for rows of a table with categories, like CTGAN (Xu et al. 2019): --recipe my_table_gan:MyTableGAN

    python my_table_gan.py people.npy
    hvdgan train --recipe my_table_gan:MyTableGAN --data people.npy --categories 3,2
        --values "0=standard;1=log1p+standard;2=none;3=none;4=none;5=none;6=none"

A row has its numbers first, and then each column of categories as zeros and a one, as pandas.get_dummies() makes them.
The first command makes such a table: age, income, one of three jobs, and yes or no.
"""

import dataclasses
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Count, Positive, Recipe, Stage, Update, UserError, losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class MyTableOptions:
    categories: tuple[int, ...] = (3, 2)
    """number of values of each column of categories, which are the last ones of a row"""
    steps: Count = 3000
    """steps; each is one update of both networks"""
    pack: Count = 10
    """rows that the critic judges together; the global batch size is a multiple"""
    width: Count = 256
    """units of each hidden layer"""
    temperature: Positive = 0.2
    """of the Gumbel softmax, by which gradients flow through chosen categories"""
    learning_rate: Positive = 2e-4
    """Adam's step size of both networks"""


class MyTableGAN(Recipe):
    """A critic of packs of rows (Lin et al. 2018); the generator gets a category of a row that it shall imitate.

    The paper draws the rows of rare categories more often: give the data with --balance FILE.npy.
    """

    Options = MyTableOptions
    ema = ("generator",)
    shows_data = True  # sample() takes the wanted categories from rows of the data

    def __init__(self, options, data):
        super().__init__(options, data)
        self.pack, self.groups = options.pack, options.categories
        self.numbers = data.shape[-1] - sum(self.groups)
        if len(data.shape) != 1 or self.numbers < 0 or not self.groups:
            raise UserError(f"--categories: {self.groups} do not fit into samples {data.shape}; expected rows (N, C)")

    def networks(self):
        (row,), wanted, width = self.data.shape, sum(self.groups), self.options.width
        latents, given = keras.Input((128,), name="latents"), keras.Input((wanted,), name="wanted")
        x = layers.Concatenate()([latents, given])
        for _ in range(2):
            x = layers.Concatenate()([x, layers.ReLU()(layers.BatchNormalization()(layers.Dense(width)(x)))])
        generator = keras.Model([latents, given], layers.Dense(row, dtype="float32")(x), name="generator")
        packs = keras.Input((self.pack * (row + wanted),), name="packs")
        x = layers.Dense(width, activation="leaky_relu")(packs)
        x = layers.Dense(width, activation="leaky_relu")(x)
        return {
            "generator": generator,
            "critic": keras.Model(packs, layers.Dense(1, dtype="float32")(x), name="critic"),
        }

    def optimizers(self):
        return {name: keras.optimizers.Adam(self.options.learning_rate, 0.5, 0.9) for name in ("generator", "critic")}

    def stages(self):
        judge, fool = Update("judge", ["critic"], self.judge), Update("fool", ["generator"], self.fool)
        return [Stage("adversarial", self.options.steps, [judge, fool])]

    def draw(self, random):
        return {
            "latents": random.normal("latents", (128,)),
            "column": random.integers("column", (), len(self.groups)),
            "uniform": random.uniform("uniform", (sum(self.groups),)),
        }

    def judge(self, nets, batch):
        wanted = self.wanted(batch)
        real, fake = self.packs(batch.images, wanted), self.packs(self.rows(nets, batch, wanted)[0], wanted)
        distance = losses.wasserstein_critic(nets.critic(real), nets.critic(fake))
        mix = batch.random.uniform("mix", ())[:: self.pack]
        return distance + 10.0 * losses.gradient_penalty(nets.critic, real, fake, mix), {"wasserstein": -distance}

    def fool(self, nets, batch):
        wanted = self.wanted(batch)
        rows, logits = self.rows(nets, batch, wanted)
        missed = tf.zeros(())
        for want, each in zip(self.columns(wanted), self.columns(logits), strict=True):
            missed += tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(want, each))
        return losses.wasserstein_generator(nets.critic(self.packs(rows, wanted))) + missed, {"missed": missed}

    def sample(self, nets, batch):
        """Rows whose categories are zeros and a one."""
        rows, _ = self.rows(nets, batch, self.wanted(batch))
        chosen = [tf.one_hot(tf.argmax(each, 1), each.shape[1]) for each in self.columns(rows[:, self.numbers :])]
        return tf.concat([rows[:, : self.numbers], *chosen], 1)

    def wanted(self, batch):
        """The category that each row has in one column, drawn at random; zeros in the other columns."""
        parts = self.columns(batch.images[:, self.numbers :])
        return tf.concat([tf.where((batch.column == n)[:, None], each, 0.0) for n, each in enumerate(parts)], 1)

    def rows(self, nets, batch, wanted):
        """Rows with almost a one in each column of categories, and the logits of the categories."""
        made = nets.generator([batch.latents, wanted])
        logits = made[:, self.numbers :]
        gumbel = -tf.math.log(1e-7 - tf.math.log(batch.uniform + 1e-7))
        soft = [tf.nn.softmax(each / self.options.temperature) for each in self.columns(logits + gumbel)]
        return tf.concat([made[:, : self.numbers], *soft], 1), logits

    def columns(self, categories):
        return tf.split(categories, self.groups, axis=1)

    def packs(self, rows, wanted):
        together = tf.concat([rows, wanted], 1)
        return tf.reshape(together, (-1, self.pack * together.shape[1]))


def main(path):
    """Make a table of 10,000 people, whose age, income and answer depend on their job."""
    random = np.random.default_rng(0)
    job = random.choice(3, 10_000, p=[0.7, 0.25, 0.05])
    age, income = random.normal(30 + 12 * job, 5), np.exp(random.normal(9.5 + 0.5 * job, 0.4))
    answer = (random.uniform(size=len(job)) < 0.2 + 0.3 * job).astype(int)
    rows = [age[:, None], income[:, None], np.eye(3)[job], np.eye(2)[answer]]
    np.save(path, np.concatenate(rows, axis=1).astype(np.float32))


if __name__ == "__main__":
    main(sys.argv[1])
