"""Losses that keep something: --recipe my_losses:MeanTeacher --image-size 16, or BYOL, Codebook, LearntWeights"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Count, Recipe, Stage, State, Update

CODES = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class MyOptions:
    """Each field is a flag, with its string in --help and its value in config.json."""

    steps: Count = 1000
    """steps of the run"""
    width: Count = 16
    """numbers between encoder and decoder"""


class Autoencoder(Recipe):
    """Encoder and decoder, whose loss the recipes below replace."""

    Options = MyOptions
    shows_data = True

    def networks(self):
        width, shape = self.options.width, self.data.shape
        encoder = [keras.Input(shape), layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(width)]
        hidden = [layers.Dense(64, activation="relu"), layers.Dense(shape[0] * shape[1] * shape[2], activation="tanh")]
        decoder = [keras.Input((width,)), *hidden, layers.Reshape(shape)]
        return {"encoder": keras.Sequential(encoder), "decoder": keras.Sequential(decoder)}

    def optimizers(self):
        return {name: keras.optimizers.Adam(1e-3) for name in ("encoder", "decoder")}

    def stages(self):
        return [Stage("fit", self.options.steps, [Update("fit", [*self.optimizers()], self.fit)])]

    def noisy(self, batch, key):
        return batch.images + 0.3 * batch.random.normal(key, self.data.shape)

    def sample(self, nets, batch):
        return nets.decoder(nets.encoder(batch.images))


class MeanTeacher(Autoencoder):
    """Two noisy views of a picture have the same features (Tarvainen and Valpola 2017)."""

    ema = ("encoder",)

    def fit(self, nets, batch):
        features = nets.encoder(self.noisy(batch, "student"))
        wanted = tf.stop_gradient(nets.averaged.encoder(self.noisy(batch, "teacher")))
        error = tf.reduce_mean((nets.decoder(features) - batch.images) ** 2)
        return error + 0.1 * tf.reduce_mean((features - wanted) ** 2), {"error": error}


class BYOL(Autoencoder):
    """A predictor foretells the target's features of another view (Grill et al. 2020)."""

    ema = ("encoder",)

    def networks(self):
        width = self.options.width
        predictor = [keras.Input((width,)), layers.Dense(64, activation="relu"), layers.Dense(width)]
        return {**super().networks(), "predictor": keras.Sequential(predictor)}

    def optimizers(self):
        return {**super().optimizers(), "predictor": keras.optimizers.Adam(1e-3)}

    def fit(self, nets, batch):
        features = nets.encoder(self.noisy(batch, "online"))
        target = tf.stop_gradient(nets.averaged.encoder(self.noisy(batch, "target")))
        cosine = tf.reduce_sum(tf.nn.l2_normalize(nets.predictor(features), 1) * tf.nn.l2_normalize(target, 1), 1)
        error = tf.reduce_mean((nets.decoder(tf.stop_gradient(features)) - batch.images) ** 2)
        return error + tf.reduce_mean(2 - 2 * cosine), {"error": error}


def nearest(features, codes):
    """The number of the code that is next to each of the features (B, width)."""
    return tf.argmin(tf.reduce_sum((features[:, None] - codes) ** 2, 2), 1)


def quantised(features, batch):
    """The codes next to features (B, width), new state, and the number of codes in use, as perplexity."""
    state, given = batch.state, tf.stop_gradient(features)
    index = nearest(given, state.codes)
    hot = tf.one_hot(index, CODES)
    use = batch.mean(hot)
    sums = 0.9 * state.shares[:, None] * state.codes + 0.1 * batch.mean(hot[:, :, None] * given[:, None])
    shares = 0.9 * state.shares + 0.1 * use
    # A code that is rarely the nearest becomes the features of a sample, drawn from the whole batch.
    rare = shares < 0.5 / CODES
    place = tf.argmax(batch.gather(batch.random.uniform("place", (CODES,))), 0)
    codes = tf.where(rare[:, None], tf.gather(batch.gather(given), place), sums / shares[:, None])
    new = {"codes": codes, "shares": tf.where(rare, 1 / CODES, shares)}
    return tf.gather(state.codes, index), new, tf.exp(-tf.reduce_sum(use * tf.math.log(use + 1e-9)))


class Codebook(Autoencoder):
    """The decoder gets the nearest of 32 codes, which are averages over time (van den Oord et al. 2017, appendix A)."""

    def state(self):
        codes = np.random.default_rng(0).normal(size=(CODES, self.options.width))
        return {"codes": State(codes), "shares": State(np.full(CODES, 1 / CODES))}

    def fit(self, nets, batch):
        features = nets.encoder(batch.images)
        codes, new, use = quantised(features, batch)
        made = nets.decoder(features + tf.stop_gradient(codes - features))
        error = tf.reduce_mean((made - batch.images) ** 2)
        return error + 0.25 * tf.reduce_mean((features - codes) ** 2), {"error": error, "use": use}, new

    def sample(self, nets, batch):
        codes = batch.state.codes
        return nets.decoder(tf.gather(codes, nearest(nets.encoder(batch.images), codes)))


class Weights(layers.Layer):
    """The sum of loss terms with weights that are learnt (Kendall et al. 2018, equation 10)."""

    def build(self, shape):
        self.log_variance = self.add_weight(shape, initializer="zeros", name="log_variance")

    def call(self, terms):
        return tf.reduce_sum(tf.exp(-self.log_variance) * terms + self.log_variance)


class LearntWeights(Autoencoder):
    """Two errors, whose weights are learnt: a weight of a loss is a network of one layer."""

    def networks(self):
        weights = Weights(dtype="float32")
        weights.build((2,))
        return {**super().networks(), "weights": weights}

    def optimizers(self):
        return {**super().optimizers(), "weights": keras.optimizers.Adam(1e-2)}

    def fit(self, nets, batch):
        error = nets.decoder(nets.encoder(batch.images)) - batch.images
        return nets.weights(tf.stack([tf.reduce_mean(error**2), tf.reduce_mean(tf.abs(error))])), {}
