"""DGMR-TensorFlow's shape: the next fields of rain after the last ones; layers that draw frames, a crop and latents."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from hvdgan.recipe import Recipe, Stage, Update, losses

PROGRAM = {
    "name": "DGMR-TensorFlow",
    "needs": "tf.random in layers, sequences of fields",
    "run": "--data {data}:rain --axes DHW --values none --sync-batch-norm",
}
PAST, FRAMES, CROP, DRAWS = 2, 2, 8, 6  # 4, 8, 128 and 6 in the program
WIDTHS = (4,)  # of four scales in the program


def arrays():
    """Sequences of five fields [mm/h]."""
    return {"rain": np.random.default_rng(0).exponential(2, (24, 5, 16, 16)).astype(np.float32)}


class Latents(layers.Layer):
    """Numbers (B, H, W, 8) for the coarsest fields of a context (B, T, H, W, 1)."""

    def __init__(self, pixels):
        super().__init__()
        self.pixels = pixels

    def call(self, fields):
        return tf.random.normal((tf.shape(fields)[0], *self.pixels, 8))


class RandomFrames(layers.Layer):
    """Some fields of a sequence, the same ones of each sample."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def call(self, fields):
        order = tf.argsort(tf.random.uniform((fields.shape[1],)))
        return tf.gather(fields, tf.sort(order[: self.count]), axis=1)


class RandomCrop(layers.Layer):
    """A square of the fields, at the same place of each sample."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def call(self, fields):
        size, (height, width) = self.size, fields.shape[2:4]
        top = tf.random.uniform((), maxval=height - size + 1, dtype=tf.int32)
        left = tf.random.uniform((), maxval=width - size + 1, dtype=tf.int32)
        fields = fields[:, :, top : top + size, left : left + size]
        return tf.ensure_shape(fields, (fields.shape[0], fields.shape[1], size, size, fields.shape[-1]))

    def compute_output_shape(self, shape):
        return (*shape[:2], self.size, self.size, shape[-1])


def normed(width, size=3, **keywords):
    return layers.SpectralNormalization(layers.Conv2D(width, size, padding="same", **keywords))


def block(x, width):
    """A residual block of a discriminator, which halves the size of fields, (B, H, W, C) or (B, T, H, W, C)."""
    three = len(x.shape) == 5
    conv, pool = (layers.Conv3D, layers.AveragePooling3D) if three else (layers.Conv2D, layers.AveragePooling2D)
    y = layers.ReLU()(x)
    for _ in range(2):
        y = layers.SpectralNormalization(conv(width, 3, padding="same"))(layers.ReLU()(y))
    x = layers.SpectralNormalization(conv(width, 1))(x)
    return pool((1, 2, 2) if three else 2)(layers.Add()([x, y]))


def growing_block(x, width):
    """A residual block of the generator, which doubles the size."""
    y = layers.UpSampling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    y = normed(width)(layers.ReLU()(layers.BatchNormalization()(normed(width)(y))))
    return layers.Add()([y, normed(width, 1)(layers.UpSampling2D()(x))])


def folded(fields):
    """The fields of all times as if each were a sample, with a quarter of the pixels and four times the channels."""
    fields = ops.reshape(fields, (-1, *fields.shape[2:]))
    return layers.Lambda(lambda x: tf.nn.space_to_depth(x, 2))(fields)


def scores(x):
    x = layers.BatchNormalization()(ops.sum(layers.ReLU()(x), (1, 2)))
    return layers.SpectralNormalization(layers.Dense(1))(x)


class DGMR(Recipe):
    shows_data = True

    def networks(self):
        time, *pixels, _ = self.data.shape
        return {
            "generator": self.generator(time - PAST, pixels),
            "spatial": self.spatial(time - PAST, pixels),
            "temporal": self.temporal(time, pixels),
        }

    def generator(self, future, pixels):
        context = keras.Input((PAST, *pixels, 1))
        states, x = [], folded(context)
        for width in WIDTHS:
            x = block(x, width)
            times = ops.reshape(x, (-1, PAST, *x.shape[1:]))
            times = ops.reshape(ops.transpose(times, (0, 2, 3, 1, 4)), (-1, *x.shape[1:3], PAST * width))
            states.append(normed(width, activation="relu")(times))
        latents = normed(WIDTHS[-1])(Latents(x.shape[1:3])(context))
        latents = layers.Add()([latents, normed(WIDTHS[-1])(layers.ReLU()(latents))])
        fields = [latents] * future
        for hidden in states[::-1]:
            width = hidden.shape[-1]
            gates, candidate = normed(2 * width, activation="sigmoid"), normed(width, activation="relu")
            times = []
            for each in fields:  # a convolutional gated recurrent unit (Ballas et al. 2016)
                reads, keeps = ops.split(gates(layers.Concatenate()([each, hidden])), 2, axis=-1)
                hidden = keeps * hidden + (1 - keeps) * candidate(layers.Concatenate()([each, reads * hidden]))
                times.append(hidden)
            x = growing_block(ops.reshape(ops.stack(times, 1), (-1, *hidden.shape[1:])), width // 2)
            x = ops.reshape(x, (-1, future, *x.shape[1:]))
            fields = [x[:, number] for number in range(future)]
        x = normed(4)(layers.ReLU()(layers.BatchNormalization()(ops.reshape(x, (-1, *x.shape[2:])))))
        x = layers.Lambda(lambda each: tf.nn.depth_to_space(each, 2))(x)
        return keras.Model(context, ops.reshape(x, (-1, future, *pixels, 1)), name="generator")

    def spatial(self, future, pixels):
        fields = keras.Input((future, *pixels, 1))
        chosen = RandomFrames(FRAMES)(fields)
        x = folded(layers.AveragePooling3D((1, 2, 2))(chosen))
        for width in WIDTHS:
            x = block(x, width)
        each = ops.reshape(scores(x), (-1, FRAMES))
        return keras.Model(fields, ops.sum(each, 1, keepdims=True), name="spatial")

    def temporal(self, time, pixels):
        fields = keras.Input((time, *pixels, 1))
        x = folded(RandomCrop(CROP)(fields))
        x = block(ops.reshape(x, (-1, time, *x.shape[1:])), WIDTHS[0])
        for width in WIDTHS[1:]:
            x = block(x, width)
        x = ops.reshape(x, (-1, *x.shape[2:]))
        each = ops.reshape(scores(x), (-1, time))
        return keras.Model(fields, ops.sum(each, 1, keepdims=True), name="temporal")

    def optimizers(self):
        rates = {"generator": 5e-5, "spatial": 2e-4, "temporal": 2e-4}
        return {name: keras.optimizers.Adam(rate, 0.0, 0.999) for name, rate in rates.items()}

    def stages(self):
        judge = Update("judge", ["spatial", "temporal"], self.judge)
        fool = Update("fool", ["generator"], self.fool, every=2)
        return [Stage("train", 1_000_000, [judge, fool])]

    def split(self, batch):
        return batch.images[:, :PAST], batch.images[:, PAST:]

    def judged(self, nets, context, forecasts):
        """The scores of both discriminators, (B, 2)."""
        whole = tf.concat([context, forecasts], 1)
        return tf.concat([nets.spatial(forecasts), nets.temporal(whole)], 1)

    def judge(self, nets, batch):
        context, truth = self.split(batch)
        both = tf.concat([nets.generator(context), truth], 0)
        fake, real = tf.split(self.judged(nets, tf.concat([context, context], 0), both), 2)
        return losses.hinge_discriminator(real, fake), {}

    def fool(self, nets, batch):
        context, truth = self.split(batch)
        forecasts = [nets.generator(context) for _ in range(DRAWS)]
        error = tf.abs(tf.add_n(forecasts) / DRAWS - truth) * tf.clip_by_value(truth, 0.0, 24.0)
        score = tf.add_n([tf.reduce_mean(self.judged(nets, context, each)) for each in forecasts])
        spread = tf.reduce_mean(tf.math.reduce_std(tf.stack(forecasts), 0))
        loss = 20 * tf.reduce_mean(error) - score / DRAWS
        return loss, {"grid_error": tf.reduce_mean(error), "spread": spread}

    def sample(self, nets, batch):
        context, _ = self.split(batch)
        return tf.concat([context, nets.generator(context)], 1)
