"""Recipes of digits with layers, regularisers and optimizers of Keras; tests name them as keras_parts:Recurrent."""

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


class Dropping(Recurrent):
    """A recurrent critic that draws masks of its own."""

    networks = Critic.networks

    def inner(self):
        return [layers.LSTM(3, dropout=0.5)]
