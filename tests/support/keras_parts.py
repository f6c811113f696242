"""Recipes of digits with layers, regularisers and optimizers of Keras; tests name them as keras_parts:Recurrent."""

import dataclasses

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update, losses


class Critic(Recipe):
    """A critic of digits that are reshaped, against noise, under the penalty of its gradient."""

    shape: tuple[int, ...] = (64,)
    penalised: tuple[str, ...] = ("critic",)

    def networks(self):
        return {"critic": self.critic(*self.inner())}

    def critic(self, *inner):
        return keras.Sequential([keras.Input(self.shape), *inner, layers.Dense(1)])

    def inner(self):
        return [layers.Flatten(), layers.Dense(16, "tanh")]

    def optimizers(self):
        return {name: keras.optimizers.SGD(0.01) for name in self.networks()}

    def stages(self):
        updates = [
            Update(f"judge_{name}", [name], lambda *given, name=name: self.judge(name, *given))
            for name in self.networks()
        ]
        return [Stage("judge", 6, updates)]

    def judge(self, name, nets, batch):
        critic = getattr(nets, name)
        real, fake = self.samples(batch), batch.random.normal("fake", self.shape)
        loss = losses.hinge_discriminator(critic(real), critic(fake))
        if name not in self.penalised:
            return loss, {}
        penalty = losses.gradient_penalty(critic, real, fake, batch.random.uniform("mix", ()))
        return loss + 10.0 * penalty, {"penalty": penalty}

    def samples(self, batch):
        return tf.reshape(batch.images, (-1, *self.shape))

    def sample(self, nets, batch):
        return tf.zeros((1, 8, 8, 1))


class AddsLoss(layers.Layer):
    """A layer that adds a loss of its output."""

    def call(self, x):
        self.add_loss(0.3 * keras.ops.mean(x**2))
        return x


class Regularised(Critic):
    """A critic with each kind of loss that a layer of Keras may have, and an update of it with and without penalty."""

    penalised = ()

    def inner(self):
        dense = layers.Dense(8, "tanh", kernel_regularizer="l2", bias_regularizer="l1", activity_regularizer="l1")
        return [dense, AddsLoss()]


class Shared(Critic):
    """A generator with a loss of its own, whose call in the critic's update is used again in its own update."""

    def networks(self):
        images = layers.Dense(64, "tanh", activity_regularizer="l2")
        return {**super().networks(), "generator": keras.Sequential([keras.Input((4,)), images])}

    def draw(self, random):
        return {"latents": random.normal("latents", (4,))}

    def stages(self):
        judge = Update("judge", ["critic"], self.judge)
        return [Stage("both", 6, [judge, Update("fool", ["generator"], self.fool)])]

    def judge(self, nets, batch):
        return losses.hinge_discriminator(
            nets.critic(self.samples(batch)), nets.critic(nets.generator(batch.latents))
        ), {}

    def fool(self, nets, batch):
        return losses.hinge_generator(nets.critic(nets.generator(batch.latents))), {}


class InBranch(Regularised):
    """A call in a branch, out of which no loss of a layer can be taken."""

    def judge(self, name, nets, batch):
        scores = tf.cond(batch.random.step > 3, lambda: nets.critic(self.samples(batch)), lambda: tf.zeros((16, 1)))
        return tf.reduce_mean(scores), {}


class Synchronized(Critic):
    """A critic whose BatchNorm is that of the batch of all ranks, by Keras' own argument."""

    penalised = ()

    def inner(self):
        return [layers.Dense(8), layers.BatchNormalization(synchronized=True), layers.ReLU()]


class SlowNormalization(layers.BatchNormalization):
    """A user's BatchNorm with other defaults."""

    def __init__(self, **settings):
        super().__init__(momentum=0.9, synchronized=True, **settings)


class SubclassSynchronized(Critic):
    """A critic whose BatchNorm is of a class of its own, and synchronised."""

    penalised = ()
    norm = SlowNormalization

    def inner(self):
        return [layers.Dense(8), self.norm(), layers.ReLU()]


class Wide(Critic):
    """Convolutions in float64 and in bfloat16 between float32 layers; a frozen one keeps its weights in bfloat16."""

    shape = (8, 8, 1)
    penalised = ()
    ema = ("critic",)

    def inner(self):
        norm = layers.BatchNormalization(dtype="float64")
        wide = [layers.Conv2D(4, 3, dtype="float64"), norm, layers.LeakyReLU(dtype="float64")]
        half = [layers.Conv2D(4, 3, dtype="bfloat16", trainable=False), layers.Activation("tanh", dtype="bfloat16")]
        return [*wide, *half, layers.Flatten()]

    def stages(self):
        (stage,) = super().stages()
        (update,) = stage.updates
        return [dataclasses.replace(stage, updates=[dataclasses.replace(update, clip_norm=0.5)])]


class Half(Critic):
    """A layer whose weights themselves are in half precision."""

    def inner(self):
        return [layers.Dense(8, dtype="bfloat16")]


class Reshaped(Shared):
    """A generator that ends in a layer without weights, whose type is that of --precision."""

    def networks(self):
        images = [layers.Dense(64, "tanh", dtype="float32"), layers.Reshape((8, 8, 1), name="to_image")]
        return {"generator": keras.Sequential([keras.Input((4,)), *images])}


class Subclassed(keras.Model):
    """A network that does not know its outputs before it is called."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(64)

    def call(self, x):
        return keras.ops.reshape(self.dense(x), (-1, 8, 8, 1))


class HalfSamples(Shared):
    """Samples of such a network."""

    def networks(self):
        generator = Subclassed()
        generator(tf.zeros((1, 4)))
        critic = keras.Sequential([keras.Input(self.shape), layers.Dense(1, dtype="float32")])
        return {"critic": critic, "generator": generator}

    def judge(self, nets, batch):
        return tf.reduce_mean(nets.critic(self.samples(batch))), {}

    def fool(self, nets, batch):
        return tf.reduce_mean(tf.cast(nets.generator(batch.latents), tf.float32)), {}

    def sample(self, nets, batch):
        return nets.generator(batch.latents)


class OfKeras2(layers.Layer):
    """A layer written for Keras 2: its weight is a tf.Variable."""

    def __init__(self):
        super().__init__(name="scale")
        self.gain = tf.Variable(tf.ones(8), name="weight")

    def call(self, x):
        return x * self.gain


class Forgotten(Critic):
    """A critic with such a layer in a network within it."""

    def inner(self):
        return [layers.Dense(8), keras.Sequential([OfKeras2()])]


class Spectral(Shared):
    """A generator under Keras' SpectralNormalization, which changes the weights of its layer in each call."""

    def networks(self):
        images = layers.SpectralNormalization(layers.Dense(64, "tanh"))
        return {**super().networks(), "generator": keras.Sequential([keras.Input((4,)), images])}


class SpectralNaN(Spectral):
    """Its generator's loss is not finite in the second step."""

    def fool(self, nets, batch):
        loss, metrics = super().fool(nets, batch)
        return loss * tf.where(tf.equal(batch.random.step, 1), tf.constant(float("nan")), 1.0), metrics


class Recurrent(Critic):
    """A critic of sequences for each recurrent layer of Keras, one under a penalty; none has dropout, so none draws."""

    shape = (4, 16)
    penalised = ("lstm",)

    def networks(self):
        pictures = [layers.Reshape((4, 4, 4, 1)), layers.ConvLSTM2D(2, 3), layers.Flatten()]
        return {
            "lstm": self.critic(layers.LSTM(3)),
            "gru": self.critic(layers.GRU(3)),
            "simple": self.critic(layers.SimpleRNN(3)),
            "both_ways": self.critic(layers.Bidirectional(layers.LSTM(3))),
            "convolution": self.critic(*pictures),
        }
