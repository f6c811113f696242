"""DCGAN in plain Keras: two networks, two updates with a forward pass each, and Keras' Adam."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf
from keras import layers
from work import POOL, Work

from hvdgan.distributed import cuda

cuda.load_libraries()  # TensorFlow 2.21 does not find one of them by itself

Gradients = Callable[[tf.GradientTape, tf.Tensor, Sequence[keras.Variable]], Sequence[tf.Tensor]]


def networks(work: Work) -> tuple[keras.Model, keras.Model]:
    """Generator (B, latent_size) -> (B, H, W, C), and discriminator (B, H, W, C) -> (B, 1, 1, 1) logits."""
    up: list[layers.Layer] = [keras.Input((work.latent_size,)), layers.Reshape((1, 1, work.latent_size))]
    for depth, width in enumerate(reversed(work.widths)):
        how = {"strides": 2, "padding": "same"} if depth else {"strides": 1, "padding": "valid"}
        up += [layers.Conv2DTranspose(width, 4, use_bias=False, kernel_initializer=_normal(), **how)]
        up += [_norm(), layers.ReLU()]
    up += [layers.Conv2DTranspose(work.channels, 4, strides=2, padding="same", kernel_initializer=_normal())]
    up += [layers.Activation("tanh", dtype="float32")]

    down: list[layers.Layer] = [keras.Input((work.image_size, work.image_size, work.channels))]
    for depth, width in enumerate(work.widths):
        kernel = {"use_bias": not depth, "kernel_initializer": _normal()}
        down += [layers.Conv2D(width, 4, strides=2, padding="same", **kernel)]
        down += [_norm()] if depth else []
        down += [layers.LeakyReLU(0.2)]
    down += [layers.Conv2D(1, 4, kernel_initializer=_normal()), layers.Activation("linear", dtype="float32")]
    return keras.Sequential(up), keras.Sequential(down)


def _normal() -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=0.02)


def _norm() -> layers.Layer:
    return layers.BatchNormalization(
        momentum=0.9, epsilon=1e-5, gamma_initializer=keras.initializers.RandomNormal(1.0, 0.02)
    )


def plain_gradients(tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """Return the gradients of one process."""
    return tape.gradient(loss, [variable.value for variable in variables])


class Trainer:
    """Both networks with their optimizers, built, and the step that trains them.

    Args:
        work: settings of the run; its precision becomes Keras' policy.
        gradients: function of a tape, a loss and variables, which returns the gradients to apply.
    """

    def __init__(self, work: Work, gradients: Gradients = plain_gradients) -> None:
        keras.mixed_precision.set_global_policy(work.precision)
        self.work = work
        self.gradients = gradients
        self.generator, self.discriminator = networks(work)
        self.optimizers = []
        for network in (self.generator, self.discriminator):
            optimizer = keras.optimizers.Adam(work.learning_rate, beta_1=work.beta_1)
            optimizer.build(network.trainable_variables)
            self.optimizers.append(optimizer)

    def step(self, pixels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """One update of the discriminator, then one of the generator; pixels (B, H, W, C) uint8."""
        images = tf.cast(pixels, tf.float32) / 127.5 - 1.0
        fakes = self.generator(self._latents(), training=True)
        with tf.GradientTape() as tape:
            real_logits = self.discriminator(images, training=True)
            fake_logits = self.discriminator(fakes, training=True)
            d_loss = tf.reduce_mean(tf.nn.softplus(-real_logits)) + tf.reduce_mean(tf.nn.softplus(fake_logits))
        self._apply(self.optimizers[1], tape, d_loss, self.discriminator)
        with tf.GradientTape() as tape:
            fakes = self.generator(self._latents(), training=True)
            g_loss = tf.reduce_mean(tf.nn.softplus(-self.discriminator(fakes, training=True)))
        self._apply(self.optimizers[0], tape, g_loss, self.generator)
        return d_loss, g_loss

    def _apply(
        self, optimizer: keras.optimizers.Optimizer, tape: tf.GradientTape, loss: tf.Tensor, network: keras.Model
    ) -> None:
        variables = network.trainable_variables
        optimizer.apply(self.gradients(tape, loss, variables), variables)

    def _latents(self) -> tf.Tensor:
        return tf.random.normal((self.work.batch_size, self.work.latent_size))

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables of the networks and optimizers."""
        held = [*self.generator.variables, *self.discriminator.variables]
        return held + [variable for optimizer in self.optimizers for variable in optimizer.variables]

    def parameters(self) -> dict[str, int]:
        """Count the trainable parameters."""
        named = {"generator": self.generator, "discriminator": self.discriminator}
        return {name: sum(v.shape.num_elements() for v in net.trainable_variables) for name, net in named.items()}

    @property
    def trained(self) -> list[keras.Variable]:
        """The weights of both networks."""
        return [*self.generator.trainable_variables, *self.discriminator.trainable_variables]

    def weights(self) -> list[float]:
        """Return the sum over each weight."""
        return [total(variable.value) for variable in self.trained]


def total(values: tf.Tensor) -> float:
    """Return the sum of all values."""
    return float(tf.reduce_sum(tf.cast(values, tf.float64)))


def pool(work: Work, rank: int) -> list[tf.Tensor]:
    """Draw batches of random pixels (B, H, W, C) uint8, different ones on each rank."""
    random = tf.random.Generator.from_seed(rank)
    shape = (work.batch_size, work.image_size, work.image_size, work.channels)
    return [tf.cast(random.uniform(shape, 0, 256, tf.int32), tf.uint8) for _ in range(POOL)]
