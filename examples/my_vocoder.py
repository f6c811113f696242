"""A vocoder, which makes waves of mel spectrograms: HiFi-GAN v3 (Kong et al. 2020, arXiv:2010.05646), smaller.

    python data/speech.py --out speech
    hvdgan train --recipe my_vocoder:MyVocoder --data speech/train --segment 8192 --global-batch-size 8
    python my_vocoder.py mels speech/test mels.npz
    hvdgan sample runs/my_vocoder.MyVocoder --data mels.npz --out made --separate
    python my_vocoder.py compare speech/test made spectrograms.png

espeak-ng speaks the sentences; a folder of your own .wav or .flac files of one rate works the same. The last command
prints the errors of the made waves and of Griffin-Lim's, and draws one sentence: spoken below, made, Griffin-Lim above.
After 45 minutes on two busy cores the made formants are right, over a buzz (docs/results.md): real use needs a GPU.

Differences from the paper: a first stage without discriminators; an upsampling is a convolution whose channels become
times; the discriminators have no groups and no spectral normalisation. Its widths: `--width 256 --judge-width 32`.
"""

import dataclasses
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from hvdgan.recipe import Count, NonNegative, Positive, Recipe, Schedule, Stage, Update, UserError, losses

WINDOW, HOP, MELS, HIGHEST = 1024, 256, 80, 8000.0
"""samples of a window and from one to the next, bands of a spectrogram, and their highest frequency (Hz)"""
RATES, KERNELS, PERIODS = (8, 8, 4), {3: (1, 2), 5: (2, 6), 7: (3, 12)}, (2, 3, 5, 7, 11)
"""factors of upsamplings, whose product is HOP; lengths of kernels, with their dilations; periods of a discriminator"""


def mel_filters(rate, highest=HIGHEST):
    """Triangles of equal area (WINDOW / 2 + 1, MELS), spaced as pitch is heard, as in Slaney's Auditory Toolbox."""
    step = np.log(6.4) / 27  # above 1000 Hz, which is 15 mel
    places = np.linspace(0, 15 + np.log(highest / 1000) / step, MELS + 2)
    edges = np.where(places < 15, places * 200 / 3, 1000 * np.exp(step * (places - 15)))
    frequencies = np.linspace(0, rate / 2, WINDOW // 2 + 1)[:, None]
    rising, falling = ((frequencies - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - frequencies) / np.diff(edges)[1:])
    return (2 * np.maximum(0, np.minimum(rising, falling)) / (edges[2:] - edges[:-2])).astype(np.float32)


def log_mels(waves, filters):
    """Logarithms of mel spectrograms (B, T / HOP, MELS) of waves (B, T, 1), reflected at their ends."""
    padded = tf.pad(waves[..., 0], [[0, 0], [(WINDOW - HOP) // 2] * 2], "REFLECT")
    spectra = tf.signal.stft(padded, WINDOW, HOP)
    sizes = tf.sqrt(tf.math.real(spectra) ** 2 + tf.math.imag(spectra) ** 2 + 1e-9)
    return tf.math.log(tf.maximum(tf.tensordot(sizes, filters, 1), 1e-5))


def spectrograms(rate, highest):
    """A network without weights, so that updates of a step which call it on the same waves share the result."""
    how = {"filters": mel_filters(rate, min(highest, rate / 2))}
    return keras.Sequential([keras.Input((None, 1)), layers.Lambda(log_mels, (None, MELS), arguments=how)])


def distance(one, other):
    """The mean distance (B,) of the logarithms of two spectrograms."""
    return tf.reduce_mean(tf.abs(one - other), (1, 2))


class NormedConv(layers.Conv1D):
    """A convolution that learns length and direction of each kernel: weight normalisation (Salimans, Kingma 2016)."""

    def build(self, shape):
        super().build(shape)
        self.length = self.add_weight((self.filters,), name="length")
        self.length.assign(self.sizes())

    def sizes(self):
        return ops.sqrt(ops.sum(super().kernel ** 2, (0, 1)))

    @property
    def kernel(self):
        return super().kernel * (self.length / self.sizes())


def conv(x, width, size, strides=1, **how):
    return NormedConv(width, size, strides, padding="same", **how)(x)


def generator(width):
    """Spectrograms (B, N, MELS) to waves (B, HOP N, 1)."""
    mels = keras.Input((None, MELS))
    x = conv(mels, width, 7)
    for rate in RATES:
        width //= 2
        x = layers.Reshape((-1, width))(conv(layers.LeakyReLU(0.1)(x), rate * width, 3))
        # Copies, since TensorFlow adds up the gradients of three uses of a tensor in any order, which rounds otherwise.
        copies = ops.split(ops.tile(x, (1, 1, len(KERNELS))), len(KERNELS), -1)
        x = layers.Average()([block(x, width, *each) for x, each in zip(copies, KERNELS.items(), strict=True)])
    return keras.Model(mels, conv(layers.LeakyReLU(0.01)(x), 1, 7, activation="tanh", dtype="float32"))


def block(x, width, size, dilations):
    for dilation in dilations:
        x = layers.Add()([x, conv(layers.LeakyReLU(0.1)(x), width, size, dilation_rate=dilation)])
    return x


def discriminator(length, width):
    """Waves (B, T, 1) to the features of each layer of eight parts, of which the last are logits."""
    wave, parts = keras.Input((length, 1)), []
    for period in PERIODS:
        rows = -(-length // period)
        x = ops.pad(wave, ((0, 0), (0, rows * period - length), (0, 0)), "reflect")
        x = ops.transpose(ops.reshape(x, (-1, rows, period)), (0, 2, 1))  # each phase of the period is a wave
        parts.append(features(ops.reshape(x, (-1, rows, 1)), width, (1, 4, 16, 32, 32), (5,) * 5, (3, 3, 3, 3, 1)))
    x = wave
    for scale in range(3):
        x = layers.AveragePooling1D(4, 2, "same")(x) if scale else x
        sizes = (15, 41, 41, 41, 41, 41, 5)
        parts.append(features(x, width, (1, 1, 2, 4, 8, 8, 8), sizes, (1, 2, 2, 4, 4, 1, 1)))
    return keras.Model(wave, parts)


def features(x, width, *layout):
    found = []
    for factor, size, strides in zip(*layout, strict=True):
        x = layers.LeakyReLU(0.1)(conv(x, factor * width, size, strides))
        found.append(x)
    return [*found, conv(x, 1, 3, dtype="float32")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MyVocoderOptions:
    steps: Count = 10_000
    """steps of the adversarial stage; each is one update of both networks"""
    mel_steps: Count = 4000
    """steps of the first stage, which trains the generator by the spectrogram alone"""
    width: Count = 128
    """channels of the generator next to the spectrogram; each of three upsamplings halves them"""
    judge_width: Count = 4
    """channels of the discriminator next to the wave"""
    mel_weight: NonNegative = 45.0
    """weight of the error of the spectrogram; the adversarial loss has weight 1"""
    feature_weight: NonNegative = 2.0
    """weight of the distance of the discriminator's features"""
    learning_rate: Positive = 2e-4
    """AdamW's step size of both networks, of which each epoch leaves 0.999; in the first stage 5 times as large"""


class MyVocoder(Recipe):
    """The spectrogram is computed of the segment itself, so that both are of the same times."""

    Options = MyVocoderOptions
    shows_data = True

    def networks(self):
        rate, length = self.data.rate, self.data.shape[0]
        if rate is None or length % HOP:
            raise UserError(f"recipe MyVocoder: expected wave files, and --segment a multiple of {HOP}")
        return {
            "generator": generator(self.options.width),
            "discriminator": discriminator(length, self.options.judge_width),
            "mels": spectrograms(rate, HIGHEST),
            "all_mels": spectrograms(rate, rate / 2),
        }

    def optimizers(self):
        rate, names = self.options.learning_rate, ("generator", "discriminator")
        return {name: keras.optimizers.Adam(rate, 0.8, 0.99, weight_decay=0.01) for name in names}  # that is AdamW

    def stages(self):
        o = self.options
        rate = {"learning_rate": Schedule(o.learning_rate, kind="exponential", factor=0.999, epochs=1)}
        match = Update("match", ["generator"], self.match, learning_rate=5 * o.learning_rate)
        judge = Update("judge", ["discriminator"], self.judge, **rate)
        fool = Update("fool", ["generator"], self.fool, **rate)
        return [Stage("mel", o.mel_steps, [match]), Stage("adversarial", o.steps, [judge, fool])]

    def error(self, nets, batch, made):
        """The mean distance of spectrograms of all frequencies, of which the generator sees the lower ones."""
        return tf.reduce_mean(distance(nets.all_mels(made), nets.all_mels(batch.images)))

    def match(self, nets, batch):
        return self.error(nets, batch, self.sample(nets, batch)), {}

    def judge(self, nets, batch):
        parts = nets.discriminator(tf.concat([batch.images, self.sample(nets, batch)], 0))
        pairs = [tf.split(part[-1], 2) for part in parts]
        return tf.add_n([losses.least_squares(real, 1.0) + losses.least_squares(fake, 0.0) for real, fake in pairs]), {}

    def fool(self, nets, batch):
        made = self.sample(nets, batch)
        mel = self.error(nets, batch, made)
        real, fake = nets.discriminator(batch.images), nets.discriminator(made)
        adversarial = tf.add_n([losses.least_squares(part[-1], 1.0) for part in fake])
        match = losses.feature_matching(tf.nest.flatten(real), tf.nest.flatten(fake))
        loss = adversarial + self.options.feature_weight * match + self.options.mel_weight * mel
        return loss, {"adversarial": adversarial, "features": match, "mel": mel}

    def sample(self, nets, batch):
        return nets.generator(nets.mels(batch.images))

    def evaluate(self, nets, batch):
        return {"mel": distance(nets.mels(batch.images), nets.mels(self.sample(nets, batch)))}

    def translate(self, nets, images, domain, random):
        return nets.generator(images)


def read(folder):
    """Each wave (1, T, 1) of a folder by its name, without what is left of a multiple of HOP, and the mel filters."""
    import soundfile

    waves = {}
    for path in sorted(each for each in Path(folder).rglob("*") if each.suffix in (".wav", ".flac")):
        wave, rate = soundfile.read(path, dtype="float32")
        waves["-".join(path.relative_to(folder).with_suffix("").parts)] = wave[None, : len(wave) // HOP * HOP, None]
    return waves, mel_filters(rate, min(HIGHEST, rate / 2))


def griffin_lim(mels, filters, rounds=60):
    """A wave (1, T, 1) of a spectrogram (1, N, MELS): sizes that have it, and phases that fit together."""
    mels, sizes = np.exp(mels[0]), np.ones((mels.shape[1], len(filters)), np.float32)
    for _ in range(200):  # non-negative least squares by products (Lee and Seung 2001)
        sizes *= (mels @ filters.T) / np.maximum(sizes @ filters @ filters.T, 1e-9)
    window, before = tf.signal.inverse_stft_window_fn(HOP), 0.0
    spectra = sizes * np.exp(2j * np.pi * np.random.default_rng(0).uniform(size=sizes.shape))
    for _ in range(rounds):  # with momentum (Perraudin et al. 2013)
        wave = tf.signal.inverse_stft(tf.constant(spectra, tf.complex64), WINDOW, HOP, window_fn=window)
        fitting = tf.signal.stft(wave, WINDOW, HOP).numpy()
        spectra, before = fitting + 0.99 * (fitting - before), fitting
        spectra *= sizes / np.maximum(np.abs(spectra), 1e-9)
    return wave[None, (WINDOW - HOP) // 2 : -(WINDOW - HOP) // 2, None]


def write_mels(folder, path):
    waves, filters = read(folder)
    np.savez(path, **{name: log_mels(wave, filters)[0] for name, wave in waves.items()})


def compare(folder, made, picture):
    """Print the mean errors of the spectrograms of made waves and of Griffin-Lim's; draw those of one sentence."""
    from matplotlib import image

    (waves, filters), (others, _), errors, shown = read(folder), read(made), [], []
    for name, wave in waves.items():
        mels = log_mels(wave, filters)
        each = [mels, *(log_mels(x, filters) for x in (others[name], griffin_lim(mels, filters)))]
        errors.append([float(distance(mels, other)[0]) for other in each[1:]])
        shown = shown or [other[0].numpy().T for other in each]
    print("log-mel error of {} waves: {:.3f}, Griffin-Lim {:.3f}".format(len(errors), *np.mean(errors, axis=0)))
    image.imsave(picture, np.concatenate(shown), origin="lower", vmin=shown[0].min(), vmax=shown[0].max())


if __name__ == "__main__":
    {"mels": write_mels, "compare": compare}[sys.argv[1]](*sys.argv[2:])
