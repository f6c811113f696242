"""What all loops share: a step as one tf.function, Adam, averages of the weights over time, and samples."""

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from hvdgan.recipe import Recipe

Numbers = dict[str, tf.Tensor]
_BATCH = 64


class Loop:
    """Networks with their optimizers and averages, and the step that trains them.

    Args:
        networks: networks by name, as the recipe makes them.
        options: options of the recipe.
        ema_decay: decay per step of the averages of the weights; 0: there are none.
    """

    recipe: ClassVar[type[Recipe]]
    """recipe that makes the networks, and whose options the loop has"""
    averaged: ClassVar[tuple[str, ...]] = ("generator",)
    """names of the networks whose weights are averaged over time"""

    def __init__(self, networks: Mapping[str, keras.Model], options: Any, ema_decay: float = 0.995) -> None:
        self.networks, self.options = networks, options
        self.optimizers = {name: self.adam(name) for name in networks}
        for name, optimizer in self.optimizers.items():
            optimizer.build(networks[name].trainable_variables)
        self._ema_decay = ema_decay
        self.averages = {
            name: [tf.Variable(variable.value, trainable=False) for variable in networks[name].variables]
            for name in (self.averaged if ema_decay else ())
        }
        self.step = tf.Variable(0, dtype=tf.int64)

    def adam(self, name: str) -> keras.optimizers.Optimizer:
        """The optimizer of a network."""
        o = self.options
        return keras.optimizers.Adam(o.learning_rate, beta_1=o.beta_1, beta_2=o.beta_2)

    def due(self, step: int) -> tuple[bool, ...]:
        """What a step, from 0, does and others do not; arguments of update()."""
        return ()

    def draw(self, count: int) -> Numbers:
        """Draw the random numbers of a step or of samples."""
        return {"latents": tf.random.normal((count, self.options.latent_size))}

    def update(self, images: tf.Tensor, drawn: Numbers, *due: bool) -> list[tf.Tensor]:
        """Update the networks; returns the losses."""
        raise NotImplementedError

    def sample(self, drawn: Numbers) -> tf.Tensor:
        """Draw pictures (B, H, W, C) in [-1, 1]."""
        return self.networks["generator"](drawn["latents"], training=False)

    @tf.function
    def train_step(self, pixels: tf.Tensor, *due: bool) -> list[tf.Tensor]:
        """One step on pixels (B, H, W, C) uint8; returns the losses."""
        images = tf.cast(pixels, tf.float32) / 127.5 - 1.0
        losses = self.update(images, self.draw(pixels.shape[0]), *due)
        self.step.assign_add(1)
        return losses

    def apply(self, name: str, tape: tf.GradientTape, loss: tf.Tensor) -> None:
        """Let the optimizer of a network make one step."""
        weights = self.networks[name].trainable_variables
        # The penalties of StyleGAN2 do not depend on the last biases.
        zero = tf.UnconnectedGradients.ZERO
        self.optimizers[name].apply(
            tape.gradient(loss, [each.value for each in weights], unconnected_gradients=zero), weights
        )

    def average(self) -> None:
        """Move the averages towards the weights, faster in the first steps, as tf.train.ExponentialMovingAverage."""
        done = tf.cast(self.step, tf.float32)
        share = 1.0 - tf.minimum(self._ema_decay, (1.0 + done) / (10.0 + done))
        for name, averages in self.averages.items():
            for average, variable in zip(averages, self.networks[name].variables, strict=True):
                average.assign_sub(share * (average - variable.value))

    def samples(self, num: int) -> np.ndarray:
        """Draw pictures with averaged weights, (num, H, W, C) uint8."""
        weights = {name: self.networks[name].get_weights() for name in self.averages}
        for name, averages in self.averages.items():
            self.networks[name].set_weights([average.numpy() for average in averages])
        pictures = [self._pixels().numpy() for _ in range(0, num, _BATCH)]
        for name, values in weights.items():
            self.networks[name].set_weights(values)
        return np.concatenate(pictures)[:num]

    @tf.function
    def _pixels(self) -> tf.Tensor:
        images = self.sample(self.draw(_BATCH))
        return tf.cast(tf.round(tf.clip_by_value((images + 1.0) * 127.5, 0.0, 255.0)), tf.uint8)
