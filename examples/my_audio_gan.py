"""A GAN for sounds, like WaveGAN (Donahue et al. 2019): --recipe my_audio_gan:MyAudioGAN

    python my_audio_gan.py chirps.npy
    hvdgan train --recipe my_audio_gan:MyAudioGAN --data chirps.npy --axes WC

Sounds are an array (N, samples, channels) of numbers in [-1, 1], as scipy.io.wavfile.read() gives integers
to divide; 64 divides the number of samples. The first command makes 2,000 chirps of 1,024 samples.
"""

import dataclasses
import sys

import keras
import numpy as np
from keras import layers, ops

from hvdgan.recipe import Count, Positive, Recipe, Stage, Update, UserError, losses

_MOST = 2
"""most samples by which the critic's features are shifted"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MyAudioOptions:
    steps: Count = 5000
    """steps; each is one update of the critic"""
    n_critic: Count = 5
    """critic updates for each update of the generator"""
    width: Count = 16
    """channels of the layers next to the sound"""
    learning_rate: Positive = 1e-4
    """Adam's step size of both networks"""


class PhaseShuffle(layers.Layer):
    """Shifts each sequence (B, T, C) by a number of its own, mirrored at the ends (section 3.3 of the paper)."""

    def call(self, x):
        shift = keras.random.randint(ops.shape(x)[:1], -_MOST, _MOST + 1)
        places = ops.abs(ops.arange(x.shape[1])[None] + shift[:, None])
        last = x.shape[1] - 1
        return ops.take_along_axis(x, (last - ops.abs(last - places))[..., None], axis=1)


class MyAudioGAN(Recipe):
    """WGAN-GP of one-dimensional convolutions, each of which changes the length by 4."""

    Options = MyAudioOptions
    ema = ("generator",)

    def networks(self):
        length, channels = self.data.shape if len(self.data.shape) == 2 else (0, 0)
        if not length or length % 64:
            raise UserError(
                f"recipe MyAudioGAN: samples {self.data.shape}; expected (T, C) with --axes WC, 64 divides T"
            )
        width = self.options.width
        latents = keras.Input((100,), name="latents")
        x = layers.Dense(length // 64 * 4 * width, activation="relu")(latents)
        x = layers.Reshape((length // 64, 4 * width))(x)
        for channels_of in (2 * width, width):
            x = layers.Conv1DTranspose(channels_of, 25, 4, padding="same", activation="relu")(x)
        x = layers.Conv1DTranspose(channels, 25, 4, padding="same", activation="tanh", dtype="float32")(x)
        y = sounds = keras.Input((length, channels), name="images")
        for number in range(3):
            y = layers.Conv1D(width * 2**number, 25, 4, padding="same", activation="leaky_relu")(y)
            if number < 2:
                y = PhaseShuffle()(y)
        critic = keras.Model(sounds, layers.Dense(1, dtype="float32")(layers.Flatten()(y)), name="critic")
        return {"generator": keras.Model(latents, x, name="generator"), "critic": critic}

    def optimizers(self):
        return {name: keras.optimizers.Adam(self.options.learning_rate, 0.5, 0.9) for name in ("generator", "critic")}

    def stages(self):
        judge = Update("judge", ["critic"], self.judge)
        fool = Update("fool", ["generator"], self.fool, every=self.options.n_critic)
        return [Stage("adversarial", self.options.steps, [judge, fool])]

    def draw(self, random):
        return {"latents": random.normal("latents", (100,))}

    def judge(self, nets, batch):
        fake = nets.generator(batch.latents)
        distance = losses.wasserstein_critic(nets.critic(batch.images), nets.critic(fake))
        mix = batch.random.uniform("mix", ())
        penalty = losses.gradient_penalty(nets.critic, batch.images, fake, mix)
        return distance + 10.0 * penalty, {"wasserstein": -distance, "penalty": penalty}

    def fool(self, nets, batch):
        return losses.wasserstein_generator(nets.critic(nets.generator(batch.latents))), {}

    def sample(self, nets, batch):
        return nets.generator(batch.latents)


def main(path):
    """Make 2,000 chirps that fade out, from 10 to 60 periods a second to as many others."""
    random, time = np.random.default_rng(0), np.arange(1024) / 1024
    first, last = random.uniform(10, 60, (2, 2000, 1))
    chirps = np.sin(2 * np.pi * (first * time + (last - first) * time**2 / 2)) * np.exp(-3 * time)
    np.save(path, (random.uniform(0.4, 0.95, (2000, 1)) * chirps)[..., None].astype(np.float32))


if __name__ == "__main__":
    main(sys.argv[1])
