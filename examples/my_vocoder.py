"""A vocoder, which makes a wave of a mel spectrogram: HiFi-GAN v3 (Kong et al. 2020, arXiv:2010.05646), smaller.

    python data/speech.py --out speech
    hvdgan train --recipe my_vocoder:MyVocoder --data speech/train --segment 8192 --global-batch-size 16
    python my_vocoder.py mels speech/test mels.npz
    hvdgan sample runs/my_vocoder.MyVocoder --data mels.npz --out made --separate
    python my_vocoder.py compare speech/test made spectrograms.png

The first command needs espeak-ng; a folder of .wav or .flac files of your own, of one rate, works the same. The others
write the spectrograms of whole sentences, a wave of each, and the errors of these beside those of Griffin-Lim.

Differences from the paper: a first stage without discriminators, which pays on a CPU; narrower networks, whose
convolutions have no groups; the upsampling is a convolution whose channels become times; and no spectral normalisation.
`--width 256 --judge-width 32 --mel-steps 1` gives the widths of the paper.
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
RATES = (8, 8, 4)
"""factors by which the generator lengthens; their product is HOP"""
KERNELS = {3: (1, 2), 5: (2, 6), 7: (3, 12)}
"""lengths of the kernels of the generator's blocks, and their dilations"""
PERIODS = (2, 3, 5, 7, 11)
"""periods of the parts of the discriminator that fold a wave"""


def mel_filters(rate, highest=HIGHEST):
    """Triangles of equal area (WINDOW / 2 + 1, MELS), spaced as pitch is heard, as in Slaney's Auditory Toolbox."""
    step = np.log(6.4) / 27  # above 1000 Hz, which is 15 mel
    last = highest * 3 / 200 if highest < 1000 else 15 + np.log(highest / 1000) / step
    places = np.linspace(0, last, MELS + 2)
    edges = np.where(places < 15, places * 200 / 3, 1000 * np.exp(step * (places - 15)))
    frequencies = np.linspace(0, rate / 2, WINDOW // 2 + 1)[:, None]
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    return (2 * np.maximum(0, np.minimum(rising, falling)) / (edges[2:] - edges[:-2])).astype(np.float32)


def log_mels(waves, filters):
    """Logarithms of mel spectrograms (B, T / HOP, MELS) of waves (B, T, 1), reflected at their ends."""
    padded = tf.pad(waves[..., 0], [[0, 0], [(WINDOW - HOP) // 2] * 2], "REFLECT")
    spectra = tf.signal.stft(padded, WINDOW, HOP)
    sizes = tf.sqrt(tf.math.real(spectra) ** 2 + tf.math.imag(spectra) ** 2 + 1e-9)
    return tf.math.log(tf.maximum(tf.tensordot(sizes, filters, 1), 1e-5))


def distance(one, other):
    """The mean distance (B,) of the logarithms of two spectrograms."""
    return tf.reduce_mean(tf.abs(one - other), (1, 2))


class NormedConv(layers.Conv1D):
    """A convolution with weight normalisation: a length of each output's kernel, and its direction, are learnt.

    Reference: Salimans and Kingma 2016 (arXiv:1602.07868).
    """

    def build(self, shape):
        super().build(shape)
        self.length = self.add_weight((self.filters,), name="length")
        self.length.assign(self.size_of(self.kernel))

    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel * (self.length / self.size_of(kernel)))

    def size_of(self, kernel):
        return ops.sqrt(ops.sum(kernel**2, (0, 1)))


def conv(x, width, size, strides=1, **how):
    return NormedConv(width, size, strides, padding="same", **how)(x)


def generator(width):
    """Spectrograms (B, N, MELS) to waves (B, HOP N, 1)."""
    mels = keras.Input((None, MELS), name="mels")
    x = conv(mels, width, 7)
    for rate in RATES:
        width //= 2
        x = conv(layers.LeakyReLU(0.1)(x), rate * width, 3)
        x = layers.Reshape((-1, width))(x)
        x = layers.Average()([block(x, width, *each) for each in KERNELS.items()])
    wave = conv(layers.LeakyReLU(0.01)(x), 1, 7, activation="tanh", dtype="float32")
    return keras.Model(mels, wave, name="generator")


def block(x, width, size, dilations):
    for dilation in dilations:
        x = layers.Add()([x, conv(layers.LeakyReLU(0.1)(x), width, size, dilation_rate=dilation)])
    return x


def discriminator(length, width):
    """Waves (B, T, 1) to the features of each layer of each part, of which the last are logits."""
    wave = keras.Input((length, 1), name="wave")
    parts = []
    for period in PERIODS:
        rows = -(-length // period)
        x = ops.pad(wave, ((0, 0), (0, rows * period - length), (0, 0)), "reflect")
        x = ops.transpose(ops.reshape(x, (-1, rows, period)), (0, 2, 1))  # each phase of the period is a wave
        widths = (width, 4 * width, 16 * width, 32 * width, 32 * width)
        parts.append(features(ops.reshape(x, (-1, rows, 1)), widths, (5,) * 5, (3, 3, 3, 3, 1)))
    x = wave
    for scale in range(3):
        x = layers.AveragePooling1D(4, 2, "same")(x) if scale else x
        widths = (width, width, 2 * width, 4 * width, 8 * width, 8 * width, 8 * width)
        parts.append(features(x, widths, (15, 41, 41, 41, 41, 41, 5), (1, 2, 2, 4, 4, 1, 1)))
    return keras.Model(wave, parts, name="discriminator")


def features(x, widths, sizes, strides):
    found = []
    for each in zip(widths, sizes, strides, strict=True):
        x = layers.LeakyReLU(0.1)(conv(x, *each))
        found.append(x)
    return [*found, conv(x, 1, 3, dtype="float32")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MyVocoderOptions:
    steps: Count = 10_000
    """steps of the adversarial stage; each is one update of both networks"""
    mel_steps: Count = 2000
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
    """AdamW's step size of both networks, of which each epoch leaves 0.999"""


class MyVocoder(Recipe):
    """The spectrogram is computed of the segment itself, so that both are of the same times."""

    Options = MyVocoderOptions
    shows_data = True

    def networks(self):
        rate, length = self.data.rate, self.data.shape[0]
        if rate is None or length % HOP:
            raise UserError(f"recipe MyVocoder: expected wave files, and --segment a multiple of {HOP}")
        self.filters, self.all_filters = mel_filters(rate, min(HIGHEST, rate / 2)), mel_filters(rate, rate / 2)
        o = self.options
        return {"generator": generator(o.width), "discriminator": discriminator(length, o.judge_width)}

    def optimizers(self):
        adam = {"learning_rate": self.options.learning_rate, "beta_1": 0.8, "beta_2": 0.99, "weight_decay": 0.01}
        return {name: keras.optimizers.AdamW(**adam) for name in ("generator", "discriminator")}

    def stages(self):
        o = self.options
        rate = {"learning_rate": Schedule(o.learning_rate, kind="exponential", factor=0.999, epochs=1)}
        match = Update("match", ["generator"], self.match)
        judge = Update("judge", ["discriminator"], self.judge, **rate)
        fool = Update("fool", ["generator"], self.fool, **rate)
        return [Stage("mel", o.mel_steps, [match]), Stage("adversarial", o.steps, [judge, fool])]

    def made(self, nets, batch):
        """Waves of the spectrograms, and the mean distance of their spectrograms over all frequencies."""
        made = nets.generator(log_mels(batch.images, self.filters))
        return made, tf.reduce_mean(distance(*(log_mels(each, self.all_filters) for each in (made, batch.images))))

    def match(self, nets, batch):
        mel = self.made(nets, batch)[1]
        return mel, {"mel": mel}

    def judge(self, nets, batch):
        real, fake = nets.discriminator(batch.images), nets.discriminator(self.made(nets, batch)[0])
        wanted = [(part[-1], 1.0) for part in real] + [(part[-1], 0.0) for part in fake]
        return tf.add_n([losses.least_squares(*each) for each in wanted]), {}

    def fool(self, nets, batch):
        made, mel = self.made(nets, batch)
        real, fake = nets.discriminator(batch.images), nets.discriminator(made)
        adversarial = tf.add_n([losses.least_squares(part[-1], 1.0) for part in fake])
        matched = losses.feature_matching(tf.nest.flatten(real), tf.nest.flatten(fake))
        loss = adversarial + self.options.feature_weight * matched + self.options.mel_weight * mel
        return loss, {"adversarial": adversarial, "features": matched, "mel": mel}

    def sample(self, nets, batch):
        return nets.generator(log_mels(batch.images, self.filters))

    def evaluate(self, nets, batch):
        mels = log_mels(batch.images, self.filters)
        return {"mel": distance(mels, log_mels(nets.generator(mels), self.filters))}

    def translate(self, nets, images, domain, random):
        """Spectrograms (B, N, MELS) of any length to waves, for hvdgan sample --data mels.npz."""
        return nets.generator(images)


def read(folder):
    """Each wave (1, T, 1) of a folder by its name, without what is left of a multiple of HOP, and the rate."""
    import soundfile

    waves = {}
    for path in sorted(each for each in Path(folder).rglob("*") if each.suffix in (".wav", ".flac")):
        wave, rate = soundfile.read(path, dtype="float32")
        waves["-".join(path.relative_to(folder).with_suffix("").parts)] = wave[None, : len(wave) // HOP * HOP, None]
    return waves, rate


def griffin_lim(mels, filters, rounds=60):
    """A wave (1, T, 1) of a spectrogram (1, N, MELS): sizes of waves that have it, and phases that fit together."""
    mels = np.exp(mels[0])
    sizes = np.ones((len(mels), len(filters)), np.float32)
    for _ in range(200):  # non-negative least squares by products (Lee and Seung 2001)
        sizes *= (mels @ filters.T) / np.maximum(sizes @ filters @ filters.T, 1e-9)
    window, before = tf.signal.inverse_stft_window_fn(HOP), 0.0
    spectra = sizes * np.exp(2j * np.pi * np.random.default_rng(0).uniform(size=sizes.shape))
    for _ in range(rounds):  # with momentum (Perraudin et al. 2013)
        wave = tf.signal.inverse_stft(tf.constant(spectra, tf.complex64), WINDOW, HOP, window_fn=window)
        fitting = tf.signal.stft(wave, WINDOW, HOP).numpy()
        spectra, before = fitting + 0.99 * (fitting - before), fitting
        spectra *= sizes / np.maximum(np.abs(spectra), 1e-9)
    beyond = (WINDOW - HOP) // 2
    return wave[None, beyond : beyond + HOP * len(mels), None]


def write_mels(folder, path):
    """Write the spectrogram of each wave of a folder to an .npz."""
    waves, rate = read(folder)
    filters = mel_filters(rate, min(HIGHEST, rate / 2))
    np.savez(path, **{name: log_mels(wave, filters)[0] for name, wave in waves.items()})
    print(f"{path}: {len(waves)} spectrograms")


def compare(folder, made, picture):
    """Print the mean error of the spectrograms of made waves, and of those of Griffin-Lim; draw them of the first."""
    import matplotlib.pyplot as plt

    (waves, rate), (others, _) = read(folder), read(made)
    filters = mel_filters(rate, min(HIGHEST, rate / 2))
    errors, shown = [], []
    for name, wave in waves.items():
        mels = log_mels(wave, filters)
        each = [mels, *(log_mels(x, filters) for x in (others[name], griffin_lim(mels, filters)))]
        errors.append([float(distance(mels, other)[0]) for other in each[1:]])
        shown = shown or each
    print("log-mel error of {} waves: {:.3f}, Griffin-Lim {:.3f}".format(len(errors), *np.mean(errors, axis=0)))
    _, places = plt.subplots(3, 1, figsize=(9, 7), layout="constrained")
    for place, mels, title in zip(places, shown, ("spoken", "made", "Griffin-Lim"), strict=True):
        place.imshow(mels[0].numpy().T, origin="lower", aspect="auto", vmin=np.min(shown[0]), vmax=np.max(shown[0]))
        place.set_title(title)
    plt.savefig(picture)


if __name__ == "__main__":
    {"mels": write_mels, "compare": compare}[sys.argv[1]](*sys.argv[2:])
