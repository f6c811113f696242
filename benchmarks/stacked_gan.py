"""The networks of Stacked MNIST: --recipe stacked_gan:StackedGAN.

Networks, optimizers and the order of updates are those of PacGAN's programs (Lin et al. 2018, Tables 2 and 3). What
differs: a batch normalisation takes the statistics of all packs together; samples of protocol B are made with its
moving averages, in place of the statistics of 128 samples; an epoch has each triple once.
"""

import dataclasses
from typing import Literal

import keras
import tensorflow as tf
from keras import layers
from packed_gan import Adam, PackedGAN, PackedOptions
from stacked import SIDE

from hvdgan.recipe import Count


@dataclasses.dataclass(frozen=True)
class Networks:
    """What tells the protocols apart.

    Args:
        latents: length of a latent vector.
        uniform: whether latents are uniform in [-1, 1); else they are normal.
        side: height and width of the generator's first layer.
        kernel: height and width of all kernels.
        last_stride: stride of the layer that makes the picture.
        quarters: channels of the discriminator's layers, in quarters of the width.
        first_norm: the first of these layers that has a batch normalisation.
        slope: that of leaky ReLU for negative numbers.
        black: number that networks see for black; white is 1, and the generator ends in tanh.
        adam: both optimizers.
        generator_updates: updates of the generator in a step.
    """

    latents: int
    uniform: bool
    side: int
    kernel: int
    last_stride: int
    quarters: tuple[int, ...]
    first_norm: int
    slope: float
    black: float
    adam: Adam
    generator_updates: int


NETWORKS = {
    "stacked-a": Networks(
        latents=100,
        uniform=True,
        side=2,
        kernel=5,
        last_stride=2,
        quarters=(4, 8, 16, 32),
        first_norm=1,
        slope=0.2,
        black=0.0,
        adam=Adam(2e-4, 2e-4, (0.5, 0.999)),
        generator_updates=2,
    ),
    "stacked-b": Networks(
        latents=256,
        uniform=False,
        side=4,
        kernel=3,
        last_stride=1,
        quarters=(1, 2, 4),
        first_norm=0,
        slope=0.3,
        black=-1.0,
        adam=Adam(1e-4, 2e-4, (0.5, 0.99)),
        generator_updates=1,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackedOptions(PackedOptions):
    """Options of the recipe."""

    protocol: Literal["stacked-a", "stacked-b"] = "stacked-b"
    """the networks of Table 2 or 3"""
    width: Count = 8
    """channels of the generator's last layer before the picture, 64 in Table 2 and 8 in Table 3; before it 8, 4 and 2
    times as many"""
    classifier: str = "classifier.keras"
    """classifier of digits that stacked_classifier.py has made"""


class StackedGAN(PackedGAN):
    """The networks of PacGAN's programs for its Tables 2 and 3, and the modes of their samples."""

    Options = StackedOptions

    @property
    def shape(self):
        return NETWORKS[self.options.protocol]

    @property
    def adam(self):
        return self.shape.adam

    @property
    def generator_updates(self):
        return self.shape.generator_updates

    def networks(self):
        classifier = keras.models.load_model(self.options.classifier, compile=False)
        classifier.trainable = False
        return {"generator": self.generator(), "discriminator": self.discriminator(), "classifier": classifier}

    def generator(self):
        """4, 7, 14 and 28 pixels, in protocol A after 2."""
        shape, width, normal = self.shape, self.options.width, keras.initializers.RandomNormal(stddev=0.02)
        latents = keras.Input((shape.latents,), name="latents")
        x = layers.Dense(shape.side**2 * 8 * width, use_bias=False, kernel_initializer=normal)(latents)
        x = layers.Reshape((shape.side, shape.side, 8 * width))(x)
        x = layers.ReLU()(norm()(x))
        for times in (4, 2, 1):
            grow = {"strides": 2, "padding": "same", "use_bias": False, "kernel_initializer": normal}
            x = layers.Conv2DTranspose(times * width, shape.kernel, **grow)(x)
            if x.shape[1] == 8:  # to 7, of which TensorFlow's convolution with stride 2 makes 4
                x = layers.Cropping2D(((1, 0), (1, 0)))(x)
            x = layers.ReLU()(norm()(x))
        draw = {"strides": shape.last_stride, "padding": "same", "kernel_initializer": normal}
        x = layers.Conv2DTranspose(3, shape.kernel, **draw)(x)
        return keras.Model(latents, layers.Activation("tanh", dtype="float32")(x), name="generator")

    def discriminator(self):
        """14, 7 and 4 pixels, in protocol A then 2."""
        shape, width, normal = self.shape, self.options.width, keras.initializers.RandomNormal(stddev=0.02)
        truncated = keras.initializers.TruncatedNormal(stddev=0.02)
        packs = x = keras.Input((SIDE, SIDE, 3 * self.pack), name="packs")
        for number, quarters in enumerate(shape.quarters):
            halve = {"strides": 2, "padding": "same", "kernel_initializer": truncated}
            x = self.judging(layers.Conv2D(quarters * width // 4, shape.kernel, **halve))(x)
            if self.options.loss == "gan" and number >= shape.first_norm:
                x = norm()(x)
            x = layers.LeakyReLU(shape.slope)(x)
        logits = self.judging(layers.Dense(1, kernel_initializer=normal, dtype="float32"))(layers.Flatten()(x))
        return keras.Model(packs, logits, name="discriminator")

    def draw(self, random):
        if self.shape.uniform:
            return {"latents": 2.0 * random.uniform("latents", (self.shape.latents,)) - 1.0}
        return {"latents": random.normal("latents", (self.shape.latents,))}

    def features(self, nets, batch):
        """128 features of each digit, and the probabilities of the modes, each the product of those of its digits.

        The largest product is that of the three largest factors, so a sample is in the mode of its most probable
        digits, however sure the classifier is, as in PacGAN's programs.
        """
        from_black = (batch.images - self.shape.black) / (1.0 - self.shape.black)
        digits = tf.reshape(tf.transpose(from_black, (0, 3, 1, 2)), (-1, SIDE, SIDE, 1))
        features, probabilities = nets.classifier(digits)
        first, second, third = tf.unstack(tf.reshape(probabilities, (-1, 3, 10)), axis=1)
        modes = first[:, :, None, None] * second[:, None, :, None] * third[:, None, None, :]
        return tf.reshape(features, (-1, 3 * features.shape[-1])), tf.reshape(modes, (-1, 1000))


def norm():
    """A batch normalisation of DCGAN's program."""
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)
