"""Stochastic super-resolution of physical fields (Leinonen et al. 2020, arXiv:2005.10374; Harris et al. 2022)."""

import dataclasses
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from hvdgan.networks.downscale import Periodic, doublings, downscaling_critic, downscaling_generator
from hvdgan.recipe import (
    Batch,
    Count,
    Decay,
    NonNegative,
    Positive,
    Random,
    Recipe,
    Schedule,
    Stage,
    Update,
    UserError,
    losses,
    metrics,
)

_EVALUATED_MEMBERS = 8
_LEAST_POWER = 1e-12  # of a mode; far above what float32 rounding leaves in fields of deviation 1
_FARTHEST = 3  # pixels between two values whose difference counts in the generator's loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class DownscaleOptions:
    """Options of the recipe downscale."""

    steps: Count = 20_000
    """steps of the only stage; each is one update of the critic"""
    nf: Count = 32
    """width of the networks: channels at the size of the image, doubled at each halving"""
    blocks: Count = 2
    """residual blocks of the generator at the size of the input"""
    noise_channels: Count = 32
    """noise channels at the size of the input, from which the members of an ensemble differ"""
    periodic: Periodic = "none"
    """axes whose two ends are neighbours, such as the width (longitude) of a global field; not with --crop"""
    n_critic: Count = 1
    """critic updates for each update of the generator"""
    gp_weight: Positive = 10.0
    """weight of the gradient penalty in the critic's loss"""
    content_weight: NonNegative = 300.0
    """weight of the CRPS of two members, and of their differences, in the generator's loss; 0: none"""
    spectrum_weight: NonNegative = 30.0
    """weight of the CRPS of the logarithm of two members' power spectra in the generator's loss; 0: none"""
    learning_rate: Positive = 1e-3
    """Adam's step size for both networks"""
    lr_decay: Literal["constant", "linear", "cosine"] = "cosine"
    """curve by which the step size falls to 0 in the stage; constant: it stays, for runs that get more steps later"""
    beta_1: Decay = 0.5
    """Adam's decay of the gradients' mean"""
    beta_2: Decay = 0.9
    """Adam's decay of their squares' mean"""


class Downscale(Recipe):
    """Conditional WGAN-GP for fields: a low-resolution input of any channels, constant fields, and noise for ensembles.

    Differences from the papers: the content loss is the fair CRPS of two members and of their differences between near
    pixels, which favours no narrow ensemble; another term is the fair CRPS of the logarithm of their power spectra;
    there are no recurrent layers.

    Command:
        python examples/data/random_fields.py --out fields.npz
        hvdgan train --recipe downscale --data fields.npz --constants orography --values standard
            --input-values standard --constant-values standard --nf 8 --periodic both --global-batch-size 16
            --ema-decay 0.998 --steps 4000

    Expect:
        Members that look like the true fields from step 1000 on; at the end a CRPS of 0.142 in the units of the fields
        (interpolation: 0.207), and a power spectrum within 5 % at all wavenumbers. It took 13.7 minutes on two cores.
    """

    Options = DownscaleOptions
    ema = ("generator",)
    paired = True
    shows_data = True

    def networks(self) -> dict[str, keras.Model]:
        o, data = self.options, self.data
        if o.periodic != "none" and data.record_layout.crop is not None:
            raise UserError(f"--periodic {o.periodic}: the ends of a crop are no neighbours; leave out one of the two")
        doublings(data.shape, data.input_shape)
        constants = 0 if data.constants_shape is None else data.constants_shape[-1]
        shape: dict[str, Any] = {"image_shape": data.shape, "input_shape": data.input_shape, "constants": constants}
        shape |= {"nf": o.nf, "periodic": o.periodic}
        return {
            "generator": downscaling_generator(**shape, noise=o.noise_channels, blocks=o.blocks),
            "critic": downscaling_critic(**shape),
        }

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        o, names = self.options, ("generator", "critic")
        return {name: keras.optimizers.Adam(o.learning_rate, o.beta_1, o.beta_2) for name in names}

    def stages(self) -> list[Stage]:
        rate: Any = {"learning_rate": Schedule(self.options.learning_rate, 0.0, self.options.lr_decay)}
        judge = Update("critic", owns=["critic"], loss=self.judge, **rate)
        fool = Update("generator", owns=["generator"], loss=self.fool, every=self.options.n_critic, **rate)
        return [Stage("adversarial", self.options.steps, [judge, fool])]

    def draw(self, random: Random) -> dict[str, tf.Tensor]:
        """Draw noise (B, h, w, n) as `latents`, so that hvdgan sample --interpolate leads from member to member."""
        return {"latents": self._noise(random, "noise")}

    def judge(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """WGAN-GP's loss; the penalty is on the slope with respect to the fields, for the given inputs."""

        def critic(images: tf.Tensor) -> tf.Tensor:
            return nets.critic([images, batch.inputs, *self._constants(batch)])

        fake = self._member(nets, batch, batch.latents)
        loss = losses.wasserstein_critic(critic(batch.images), critic(fake))
        penalty = losses.gradient_penalty(critic, batch.images, fake, batch.random.uniform("mix", ()))
        return loss + batch.schedule("gp_weight") * penalty, {"wasserstein": -loss, "gradient_penalty": penalty}

    def fool(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        fake = self._member(nets, batch, batch.latents)
        adversarial = losses.wasserstein_generator(nets.critic([fake, batch.inputs, *self._constants(batch)]))
        o = self.options
        if not o.content_weight and not o.spectrum_weight:
            return adversarial, {}
        members = tf.stack([fake, self._member(nets, batch, self._noise(batch.random, "other"))])
        content = tf.reduce_mean(content_crps(batch.images, members))
        spectrum = tf.reduce_mean(spectrum_crps(batch.images, members, o.periodic))
        metrics = {"adversarial": adversarial, "content": content, "spectrum": spectrum}
        return adversarial + o.content_weight * content + o.spectrum_weight * spectrum, metrics

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        return self._member(nets, batch, batch.latents)

    def evaluate(self, nets: Any, batch: Batch) -> dict[str, tf.Tensor]:
        """Scores of an ensemble of 8 members, on the scale that networks see.

        These are the fair CRPS, the RMSE of the ensemble's mean, the MAE of the first member, and in rank_0 to rank_8
        the fractions with 0 to 8 members below the truth: 1/9 each where the ensemble is calibrated.
        """
        noises = [batch.latents] + [self._noise(batch.random, f"member_{n}") for n in range(1, _EVALUATED_MEMBERS)]
        members = tf.stack([self._member(nets, batch, noise) for noise in noises])
        error = tf.reduce_mean(members, axis=0) - batch.images
        frequencies = metrics.rank_frequencies(batch.images, members)
        return {
            "crps": metrics.fair_crps(batch.images, members),
            "rmse": tf.sqrt(tf.reduce_mean(tf.square(error), axis=(1, 2, 3))),
            "mae": tf.reduce_mean(tf.abs(members[0] - batch.images), axis=(1, 2, 3)),
            **{f"rank_{rank}": frequencies[:, rank] for rank in range(_EVALUATED_MEMBERS + 1)},
        }

    def _noise(self, random: Random, key: str) -> tf.Tensor:
        assert self.data.input_shape is not None  # networks() has checked the shapes
        height, width = self.data.input_shape[:2]
        return random.normal(key, (height, width, self.options.noise_channels))

    def _member(self, nets: Any, batch: Batch, noise: tf.Tensor) -> tf.Tensor:
        return nets.generator([batch.inputs, noise, *self._constants(batch)])

    def _constants(self, batch: Batch) -> list[tf.Tensor]:
        return [] if batch.constants is None else [batch.constants]


def content_crps(images: tf.Tensor, members: tf.Tensor) -> tf.Tensor:
    """Mean (B,) of the CRPS of fields (B, H, W, C), and of the differences of pixels 1, 2 and 3 apart, of an ensemble.

    The variance of these differences depends on the small scales, to which the CRPS of the fields is almost blind.
    """
    scores = [metrics.fair_crps(images, members)]
    for lag in range(1, min(_FARTHEST + 1, *images.shape[1:3])):
        down = images[:, lag:] - images[:, :-lag]
        scores.append(metrics.fair_crps(down, members[:, :, lag:] - members[:, :, :-lag]))
        across = images[:, :, lag:] - images[:, :, :-lag]
        scores.append(metrics.fair_crps(across, members[:, :, :, lag:] - members[:, :, :, :-lag]))
    return tf.add_n(scores) / len(scores)


def spectrum_crps(images: tf.Tensor, members: tf.Tensor, periodic: Periodic) -> tf.Tensor:
    """Fair CRPS (B,) of the logarithm of the power spectrum of fields and ensemble, over wavenumbers and channels.

    An error of 10 % counts at high wavenumbers as much as at the largest scales, however small the power is.

    Reference: Durall, Keuper, Keuper 2020 (arXiv:2003.01826), section 3, for the spectrum as a loss.
    """
    if min(images.shape[1:3]) < 2:
        return tf.zeros(tf.shape(images)[:1])
    powers = [power_spectrum(each, periodic) for each in (images, *tf.unstack(members))]
    truth, *others = (tf.math.log(each + _LEAST_POWER)[:, :, None] for each in powers)  # (B, N / 2, 1, C)
    return metrics.fair_crps(truth, tf.stack(others))


def power_spectrum(images: tf.Tensor, periodic: Periodic) -> tf.Tensor:
    """Mean power (B, N / 2, C) of the modes of each wavenumber 1 to N / 2 along the shorter side of N pixels, rounded.

    On an axis that is not periodic, a window makes the two ends meet at 0, since the power of a jump there would hide
    that of the small scales. The powers of all modes of a field sum to the mean of its squares.
    """
    height, width = images.shape[1:3]
    windows = [
        tf.ones(size) if ends_meet else tf.signal.hann_window(size)
        for size, ends_meet in ((height, periodic == "both"), (width, periodic != "none"))
    ]
    fields = tf.transpose(tf.cast(images, tf.float32), (0, 3, 1, 2)) * windows[0][:, None] * windows[1]
    modes = tf.signal.rfft2d(fields) / (height * width)
    powers = tf.transpose(tf.square(tf.math.real(modes)) + tf.square(tf.math.imag(modes)), (2, 3, 0, 1))
    rings, weights = _rings(height, width)
    means = tf.math.unsorted_segment_sum(weights[..., None, None] * powers, rings, int(rings.max()) + 1)
    return tf.transpose(means[1:], (1, 0, 2))


def _rings(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The wavenumber of each mode of a real FFT, 0 for those that do not count, and its share in the ring's mean."""
    side = min(height, width)
    waves = np.rint(side * np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))).astype(np.int64)
    waves[waves > side // 2] = 0
    twins = np.full(waves.shape, 2.0)  # a mode and its conjugate, which a real FFT leaves out
    twins[:, 0] = 1
    if width % 2 == 0:
        twins[:, -1] = 1
    return waves, (twins / np.bincount(waves.ravel(), twins.ravel())[waves]).astype(np.float32)


RECIPE = Downscale
