"""Losses that are no means over samples, with batch.mean and batch.gather, and without; a program that trains them."""

import dataclasses
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from building import tiny_run, trained
from hvdgan.distributed import joining
from hvdgan.recipe import Recipe, Stage, Update, losses
from tiny import TinyOptions

STEPS = 50
HALF = "-half"
"""ending of a kind that is trained in float16, with a loss scale"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeOptions(TinyOptions):
    kind: str = "root"
    """name of the method that adds its part to the losses"""
    whole: bool = True
    """False: each rank computes with its own samples"""


class Whole(Recipe):
    """Each update adds a part to a least-squares loss: `features` are (B, 6), `score` is the head's of them."""

    Options = WholeOptions
    pack = 2

    def networks(self):
        making = [
            keras.Input((8,)),
            layers.Dense(16, "tanh"),
            layers.Dense(64, "tanh"),
            layers.Reshape((8, 8, 1), dtype="float32"),
        ]
        judging = [keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(16, "tanh"), layers.Dense(6, dtype="float32")]
        networks = {
            "generator": making,
            "discriminator": judging,
            "head": [keras.Input((7,)), layers.Dense(1, dtype="float32")],
        }
        return {name: keras.Sequential(parts, name=name) for name, parts in networks.items()}

    def optimizers(self):
        return {name: keras.optimizers.SGD(0.02) for name in ("generator", "discriminator", "head")}

    def stages(self):
        updates = [Update("judge", ["discriminator", "head"], self.judge), Update("fool", ["generator"], self.fool)]
        return [Stage("both", STEPS, updates, together=self.options.kind == "relativistic")]

    def draw(self, random):
        return {"latents": random.normal("latents", (8,))}

    def judge(self, nets, batch):
        return self.loss(nets, batch, 1.0, 0.0)

    def fool(self, nets, batch):
        return self.loss(nets, batch, 0.0, 1.0)

    def loss(self, nets, batch, real_target, fake_target):
        if not self.options.whole:
            batch.mean, batch.gather = (lambda x: tf.reduce_mean(x, 0)), lambda x: x
        made = nets.generator(batch.latents)
        real, fake = (nets.discriminator(images) for images in (batch.images, made))
        scores = [self.score(nets, batch, features) for features in (real, fake)]
        base = sum(tf.reduce_mean((s - t) ** 2) for s, t in zip(scores, (real_target, fake_target), strict=True))
        # The generator's relativistic loss is the discriminator's with the scores exchanged.
        scores = scores if real_target > fake_target else scores[::-1]
        return base + getattr(self, self.options.kind)(nets, batch, made, real, fake, *scores), {}

    def score(self, nets, batch, features):
        seen = tf.ones_like(features[:, :1])
        if self.options.kind == "deviation":
            variance = batch.mean(features**2) - batch.mean(features) ** 2
            seen *= tf.reduce_mean(tf.sqrt(variance + 1e-3))
        return nets.head(tf.concat([features, seen], 1))[:, 0]

    def relativistic(self, nets, batch, made, real, fake, real_score, fake_score):
        return 4.0 * losses.relativistic_average(real_score, fake_score, batch.mean)

    def root(self, nets, batch, made, real, fake, *scores):
        return tf.sqrt(batch.mean(tf.reduce_mean((made - batch.images) ** 2, (1, 2, 3)))) + tf.sqrt(
            batch.mean(tf.reduce_sum((real - fake) ** 2, 1))
        )

    def moments(self, nets, batch, made, real, fake, *scores):
        """Yoon et al. 2019: distances of means and of standard deviations."""
        means = [batch.mean(x) for x in (real, fake)]
        roots = [tf.sqrt(batch.mean((x - mean) ** 2) + 1e-6) for x, mean in zip((real, fake), means, strict=True)]
        return sum(tf.reduce_mean((a - b) ** 2) for a, b in (means, roots))

    def mmd(self, nets, batch, made, real, fake, *scores):
        """Of packs of two, with a Gaussian kernel."""
        real, fake = (batch.gather(tf.reshape(x, (-1, 12))) for x in (real, fake))

        def kernel(a, b):
            return tf.reduce_mean(tf.exp(-tf.reduce_sum((a[:, None] - b[None]) ** 2, 2) / 12))

        return kernel(real, real) + kernel(fake, fake) - 2 * kernel(real, fake)

    def entropy(self, nets, batch, made, real, fake, *scores):
        """Yu et al. 2022: few codes for a picture, many for all."""
        return self.of_codes(batch, real) + self.of_codes(batch, fake)

    def of_codes(self, batch, features):
        distances = 4 * tf.reduce_sum((features[:, None] - tf.eye(6)) ** 2, 2)
        chosen = tf.nn.softmax(-distances)  # (B, codes)
        use = batch.mean(chosen)  # (codes,), of the whole global batch
        entropy = -tf.reduce_sum(use * tf.math.log(use + 1e-6))
        return -tf.reduce_mean(tf.reduce_sum(chosen * tf.math.log(chosen + 1e-6), 1)) - entropy

    def deviation(self, nets, batch, *others):
        """A gradient penalty of a head that sees the standard deviation over the batch: second derivatives."""
        mix = batch.random.uniform("mix", ())

        def critic(images):
            return self.score(nets, batch, nets.discriminator(images))

        return losses.gradient_penalty(critic, batch.images, others[0], mix)

    def adaptive(self, nets, batch, made, *others):
        """Esser et al. 2021, equation 7: the weight of a loss is a ratio of norms of gradients."""
        with tf.GradientTape(persistent=True) as tape:
            kernel = nets.generator.trainable_variables[-2].value
            made = nets.generator(batch.latents)
            error = tf.reduce_mean((made - batch.images) ** 2)
            fooled = tf.reduce_mean((nets.discriminator(made)) ** 2)
        first, second = (tf.norm(batch.mean(tape.gradient(each, kernel)[None])) for each in (error, fooled))
        return error + tf.stop_gradient(first / (second + 1e-4)) * fooled

    def contrast(self, nets, batch, made, real, fake, *scores):
        """van den Oord et al. 2018, equation 4."""
        noisy = nets.discriminator(batch.images + 0.1 * batch.random.normal("noise", self.data.shape))
        first, second = (batch.gather(tf.nn.l2_normalize(x, 1)) for x in (real, noisy))
        similar = tf.matmul(first, second, transpose_b=True) / 0.2
        pairs = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(first.shape[0]), similar)
        return tf.reduce_mean(pairs) + 0.0 * tf.reduce_sum(fake)

    def sample(self, nets, batch):
        return nets.generator(batch.latents)


KINDS = ("relativistic", "root", "moments", "mmd", "entropy", "deviation", "adaptive", "contrast")


def weights(kind, ranks, *, whole=True, steps=STEPS):
    """The trained networks of a run on 14 samples, in slices that are unequal; `kind` may end in "-half"."""
    ranks, kind, half = dataclasses.replace(ranks, slice_unit=2), kind.removesuffix(HALF), kind.endswith(HALF)
    options, precision = WholeOptions(kind=kind, whole=whole), "mixed_float16" if half else "float32"
    values = trained(tiny_run(Whole, options, ranks, global_batch_size=14, precision=precision), steps)
    return {name: value for name, value in values.items() if name.startswith("networks/")}


if __name__ == "__main__":
    ranks = joining.start()
    for kind in sys.argv[2:]:
        found = {whole: weights(kind, ranks, whole=whole) for whole in (True, False)}
        if ranks.is_root:
            for whole, values in found.items():
                np.savez(f"{sys.argv[1]}/{kind}-{whole}.npz", **values)
    ranks.shutdown()
