"""A tokenizer of pictures, like VQGAN (Esser et al. 2021, arXiv:2012.09841): --recipe my_tokenizer:MyTokenizer

    hvdgan train --recipe my_tokenizer:MyTokenizer --data mnist/train.npz --width 16 --global-batch-size 32
    hvdgan sample runs/my_tokenizer.MyTokenizer --data mnist/test.npz --samples 10000 --out tokens.npz

H x W pixels become H/4 x W/4 tokens, the numbers of codes, of which the decoder makes a copy. The second command writes
copies, originals and tokens. Digits are legible after 1,000 steps, two minutes of a core (docs/results.md).
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Count, NonNegative, Positive, Recipe, Stage, State, Update, losses, metrics


@dataclasses.dataclass(frozen=True, kw_only=True)
class MyTokenizerOptions:
    first_steps: Count = 2000
    """steps of the first stage, without the discriminator"""
    steps: Count = 6000
    """steps of the second stage"""
    codes: Count = 64
    """number of codes"""
    code_size: Count = 16
    """numbers of a code"""
    width: Count = 32
    """channels of the layers next to the picture"""
    learn_codes: bool = False
    """let the codes follow their gradients, in place of averages of the features next to them"""
    features: str = ""
    """file (.keras) of a frozen network, by whose features pictures are compared; default: a random one"""
    l2: bool = False
    """compare pixels alone, by their squared error; with --stages errors=8000 this is VQ-VAE"""
    feature_weight: NonNegative = 1.0
    """weight of the error of features; that of pixels has weight 1"""
    adversarial_weight: NonNegative = 0.2
    """norm of the adversarial gradient at the decoder's last layer, if that of the errors is 1; the paper has 0.8"""
    learning_rate: Positive = 5e-4
    """Adam's step size of all networks"""


class MyTokenizer(Recipe):
    """Encoder, codebook and decoder without attention, and a discriminator of patches that starts late."""

    Options = MyTokenizerOptions
    ema = ("encoder", "decoder")
    shows_data = True

    def networks(self):
        o, channels = self.options, self.data.channels
        features = keras.models.load_model(o.features) if o.features else random_features(channels)
        features.trainable = False
        networks = {
            "encoder": encoder(channels, o.width, o.code_size),
            "decoder": decoder(channels, o.width, o.code_size),
            "discriminator": discriminator(channels, o.width),
            "features": features,
        }
        table = layers.Embedding(o.codes, o.code_size, embeddings_initializer="zeros")
        codes = {"codes": keras.Sequential([keras.Input((), dtype="int32"), table])}
        return {**networks, **codes} if o.learn_codes else networks

    def optimizers(self):
        names = ["discriminator", "encoder", "decoder", *["codes"] * self.options.learn_codes]
        return {name: keras.optimizers.Adam(self.options.learning_rate, 0.5, 0.9) for name in names}

    def stages(self):
        o, (judged, *rebuilt) = self.options, self.optimizers()
        rebuild = Update("rebuild", rebuilt, self.rebuild)
        both = [Update("judge", [judged], self.judge), Update("rebuild", rebuilt, self.rebuild_and_fool)]
        return [Stage("errors", o.first_steps, [rebuild]), Stage("adversarial", o.steps, both)]

    def state(self):
        """The codes, and the part of the features that uses each, as averages over time. The first batch sets them."""
        codes = np.random.default_rng(0).normal(size=(self.options.codes, self.options.code_size))
        return {"codes": State(codes), "use": State(np.zeros(self.options.codes))}

    def encoded(self, nets, batch):
        """The features of pictures, (B, H/4, W/4, code_size), the number of the code next to each, and the codes."""
        o, features = self.options, nets.encoder(batch.images)
        codes = batch.state.codes + (nets.codes(tf.range(o.codes)) if o.learn_codes else 0.0)
        distances = tf.reduce_sum(codes**2, 1) - 2 * tf.einsum("bhwc,kc->bhwk", features, codes)
        return features, tf.argmin(distances, -1), codes

    def quantised(self, nets, batch):
        """What the decoder sees, the loss of features and codes, new state, and what is logged."""
        features, tokens, codes = self.encoded(nets, batch)
        chosen = tf.gather(codes, tokens)
        loss = 0.25 * losses.squared_error(tf.stop_gradient(chosen), features)
        if self.options.learn_codes:
            loss += losses.squared_error(tf.stop_gradient(features), chosen)
        new, use = self.moved(tf.stop_gradient(features), tokens, tf.stop_gradient(codes), batch)
        used, entropy = tf.reduce_mean(tf.cast(use > 0, tf.float32)), -tf.reduce_sum(use * tf.math.log(use + 1e-9))
        # Straight through: the encoder's features get the gradient of their codes.
        given = features + tf.stop_gradient(chosen - features)
        return given, loss, new, {"codes": loss, "used": used, "perplexity": tf.exp(entropy)}

    def moved(self, features, tokens, codes, batch):
        """New state, and the share of the global batch's features that uses each code, (codes,)."""
        o, state, flat = self.options, batch.state, tf.reshape(features, (-1, self.options.code_size))
        hot = tf.one_hot(tf.reshape(tokens, (-1,)), o.codes)
        means = tf.concat([tf.reduce_mean(hot, 0)[:, None], tf.matmul(hot, flat, transpose_a=True) / flat.shape[0]], 1)
        now, sums = tf.split(batch.mean(means[None]), [1, o.code_size], 1)
        use = 0.99 * state.use + 0.01 * now[:, 0]
        averages = tf.math.divide_no_nan(0.99 * state.use[:, None] * codes + 0.01 * sums, use[:, None])
        # A code that features hardly use becomes one of them, drawn from those of the whole batch.
        rare, places = use < 0.1 / o.codes, batch.gather(batch.random.uniform("places", tokens.shape[1:]))
        _, drawn = tf.math.top_k(tf.reshape(places, (-1,)), o.codes)
        found = tf.gather(tf.reshape(batch.gather(features), (-1, o.code_size)), drawn)
        new = tf.where(rare[:, None], found, codes if o.learn_codes else averages)
        # What the codes have learnt stays in their network.
        return {"codes": new - (codes - state.codes), "use": tf.where(rare, 1 / o.codes, use)}, now[:, 0]

    def error(self, nets, images, made):
        if self.options.l2:
            return losses.squared_error(images, made)
        of_features = tf.reduce_mean(self.feature_error(nets, images, made))
        return losses.absolute_error(images, made) + self.options.feature_weight * of_features

    def feature_error(self, nets, images, made):
        """The squared error of each output of the frozen network, (B,), added up."""
        pairs = zip(*(tf.nest.flatten(nets.features(each)) for each in (images, made)), strict=True)
        return tf.add_n([tf.reduce_mean((one - other) ** 2, range(1, one.shape.rank)) for one, other in pairs])

    def rebuild(self, nets, batch):
        given, of_codes, new, shown = self.quantised(nets, batch)
        error = self.error(nets, batch.images, nets.decoder(given))
        return error + of_codes, {"error": error, **shown}, new

    def rebuild_and_fool(self, nets, batch):
        given, of_codes, new, shown = self.quantised(nets, batch)
        with tf.GradientTape(persistent=True) as tape:
            made = nets.decoder(given)
            error = self.error(nets, batch.images, made)
            fool = losses.hinge_generator(nets.discriminator(batch.augment(made, "made")))
        # Equation 7, at the decoder's last kernel. A norm is no mean, so the gradients are first those of all ranks.
        gradients = [tape.gradient(each, nets.decoder.trainable_variables[-2].value) for each in (error, fool)]
        first, second = tf.unstack(batch.mean(tf.stack(gradients)[None]))
        weight = self.options.adversarial_weight * tf.stop_gradient(tf.norm(first) / (tf.norm(second) + 1e-4))
        return error + of_codes + weight * fool, {"error": error, "fool": fool, "weight": weight, **shown}, new

    def judge(self, nets, batch):
        made = self.sample(nets, batch)["images"]
        real, fake = (nets.discriminator(batch.augment(*each)) for each in ((batch.images, "real"), (made, "made")))
        return losses.hinge_discriminator(real, fake), {"real": tf.reduce_mean(real), "made": tf.reduce_mean(fake)}

    def sample(self, nets, batch):
        _, index, codes = self.encoded(nets, batch)
        return {"images": nets.decoder(tf.gather(codes, index)), "originals": batch.images, "tokens": index[..., None]}

    def evaluate(self, nets, batch):
        images, made = batch.images, self.sample(nets, batch)["images"]
        return {"psnr": metrics.psnr(images, made), "features": self.feature_error(nets, images, made)}


def convolution(x, width, kernel=3, **settings):
    return layers.Conv2D(width, kernel, padding="same", **settings)(x)


def active(x):
    return layers.Activation("silu")(layers.GroupNormalization(8)(x))


def residual(x, width):
    return layers.Add()([x, convolution(active(convolution(active(x), width)), width)])


def encoder(channels, width, code_size):
    x = images = keras.Input((None, None, channels))
    for wide in (width, 2 * width):
        x = residual(convolution(x, wide, 4, strides=2), wide)
    return keras.Model(images, convolution(active(x), code_size, 1, dtype="float32"), name="encoder")


def decoder(channels, width, code_size):
    x = codes = keras.Input((None, None, code_size))
    for wide in (2 * width, width):
        x = layers.UpSampling2D()(residual(convolution(x, wide), wide))
    x = active(convolution(x, width))
    return keras.Model(codes, convolution(x, channels, activation="tanh", dtype="float32"), name="decoder")


def discriminator(channels, width):
    x = images = keras.Input((None, None, channels))
    for wide, strides in ((width, 2), (2 * width, 2), (2 * width, 1)):
        x = active(convolution(x, wide, 4, strides=strides))
    return keras.Model(images, convolution(x, 1, 4, dtype="float32"), name="discriminator")


def random_features(channels):
    """Three sizes of features, by fixed random kernels."""
    outputs = [images := keras.Input((None, None, channels))]
    for strides, width in ((1, 16), (2, 32), (2, 64)):
        kernels = keras.initializers.HeNormal(seed=width)
        outputs.append(convolution(outputs[-1], width, strides=strides, activation="relu", kernel_initializer=kernels))
    return keras.Model(images, outputs[1:], name="features")
