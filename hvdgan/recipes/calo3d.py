"""3DGAN: showers in a calorimeter, conditional on energy and angle (Khattak et al. 2022, arXiv:2109.07388)."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from hvdgan.networks.calo3d import calo3d_discriminator, calo3d_generator
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
)
from hvdgan.values.transforms import Power

_CONTRAST = 10.0  # the discriminator's scale turns logarithmic at a tenth of the equal share of a layer, row or column
_USUAL = 3.0  # largest usual deviation of a sum of deposits from its median, in median absolute deviations
_LEAST_SHARE = 0.01  # share of a layer below which its relative error counts less
_TINY = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calo3DOptions:
    """Options of the recipe calo3d."""

    steps: Count = 20_000
    """steps of the only stage"""
    nf: Count = 16
    """width of the networks: channels next to the cells, doubled at each halving of the size"""
    latent_size: Count = 64
    """length of a latent vector; in the paper 254"""
    energy: str = "energy"
    """name of the condition that is the energy of the particle; other conditions are angles or other numbers"""
    real_fake_weight: Positive = 3.0
    """weight of the loss of real against generated showers"""
    energy_weight: NonNegative = 0.1
    """weight of the error of the energy that the discriminator estimates, in percent"""
    angle_weight: NonNegative = 25.0
    """weight of the error of the angle that the discriminator estimates, in the unit of the condition; the default is
    for radians"""
    deposits_weight: NonNegative = 0.1
    """weight of the error of the sum of deposits, in percent"""
    profile_weight: NonNegative = 4.0
    """weight of the errors of the mean shares of layers, rows and columns in the deposits; in the paper 0"""
    r1_weight: NonNegative = 0.03
    """weight of the R1 penalty on the discriminator's gradient; 0: off"""
    r1_every: Count = 8
    """steps between two updates with the R1 penalty, which is also weighted by this number"""
    learning_rate: Positive = 5e-4
    """Adam's step size for both networks at the first step; it falls linearly to a fiftieth of it at the last step"""
    beta_1: Decay = 0.5
    """Adam's decay of the gradients' mean"""
    beta_2: Decay = 0.99
    """Adam's decay of their squares' mean"""


class Calo3D(Recipe):
    """3DGAN: a generator of showers for given conditions, and a discriminator with a head for each of four losses.

    The weights of the four losses are the paper's. Differences, for training in minutes instead of days: the generator
    returns the shape of a shower and its sum apart. The discriminator also sees the conditions and the shares of
    layers, rows and columns; its loss is the non-saturating one with R1, without BatchNorm and dropout. Errors that
    real showers have as well are free, else the sum of deposits hardly fluctuates. Two more heads estimate the mean
    shares for given conditions, and the generator is moved along the gradient of their squared relative difference
    (--profile-weight), else thin tails are too thin. The paper's loss of counts of cells in bins of energy is left out.

    Command:
        hvdgan train --recipe calo3d --data showers.h5:ECAL --axes DHW --conditions energy,theta
            --values power:0.85 --condition-values "energy=log1p+standard;theta=standard" --nf 8
            --learning-rate 1e-3 --global-batch-size 32 --ema-decay 0.998 --steps 7500

    Expect:
        On showers of examples/data/showers.py, between 10 and 500 GeV, the mean response within 0.2 % of the truth, and
        each layer, row and column with 1 % of the energy or more within 7 %. It took 814 s on two busy cores.
    """

    Options = Calo3DOptions
    ema = ("generator",)

    def networks(self) -> dict[str, keras.Model]:
        o, shape, k = self.options, self.data.shape, len(self.data.conditions)
        if o.energy not in self.data.conditions:
            names = [*self.data.conditions]
            there = f"{', '.join(names)}; give one, such as --energy {names[0]}" if names else ""
            there = there or "no conditions: give --conditions energy,theta, or yours"
            raise UserError(f"--energy {o.energy}: no such condition; the data have {there}")
        chain = self.data.values.images.chains[0] if self.data.values is not None else ()
        exponents = [step.exponent for step in chain if isinstance(step, Power)]
        if len(chain) > 1 or len(exponents) < len(chain):
            raise UserError(
                f"--values {self.data.values and self.data.values.images}: expected power:EXPONENT, such as "
                "power:0.85, or none, from which calo3d knows the deposits of cells that it adds up"
            )
        sizes: dict[str, Any] = {"latent_size": o.latent_size, "num_conditions": k, "exponent": (*exponents, 1.0)[0]}
        return {
            "generator": calo3d_generator(shape=shape, nf=o.nf, features=self._features, **sizes),
            "discriminator": calo3d_discriminator(shape=shape, nf=o.nf, num_features=k + 1, num_angles=k - 1),
        }

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        o, names = self.options, ("generator", "discriminator")
        return {name: keras.optimizers.Adam(o.learning_rate, o.beta_1, o.beta_2) for name in names}

    def stages(self) -> list[Stage]:
        o = self.options
        rate = Schedule(o.learning_rate, 0.02 * o.learning_rate)
        judge = Update("judge", owns=["discriminator"], loss=self.judge, learning_rate=rate)
        r1 = Update("r1", owns=["discriminator"], loss=self.r1, every=o.r1_every, learning_rate=rate)
        fool = Update("fool", owns=["generator"], loss=self.fool, learning_rate=rate)
        return [Stage("adversarial", o.steps, [judge, *([r1] if o.r1_weight else []), fool])]

    def draw(self, random: Random) -> dict[str, tf.Tensor]:
        """Draw `latents` (B, latent_size), and `noise` (B, D, H, W, 1) for the fluctuations of single cells."""
        latents = random.normal("latents", (self.options.latent_size,))
        return {"latents": latents, "noise": random.normal("noise", self.data.shape)}

    def judge(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Real against generated showers, and the estimates of the heads for real ones."""
        showers = self.sample(nets, batch)
        real = nets.discriminator(self._seen(batch.images, batch.conditions))
        fake = nets.discriminator(self._seen(showers, batch.conditions))
        energy, deposits = self._energy(batch.conditions), self._deposits(batch.images)
        median = tf.stop_gradient(real["deposits"])
        deviations = [tf.abs(self._response(each, energy) - median) for each in (batch.images, showers)]
        loss, errors = self._weighted(
            losses.non_saturating_discriminator(real["logits"], fake["logits"]),
            _percent(tf.exp(real["energy"]) * deposits / energy - 1.0),
            self._angle_error(real, batch.conditions),
            _percent(tf.exp(real["deposits"]) * energy / (deposits + _TINY * energy) - 1.0)
            + _percent(real["spread"] - deviations[0])
            + _percent(fake["fake_spread"] - deviations[1]),
        )
        # The cross-entropy is least where the estimate is the mean.
        shares = [self._profiles(self._shares(each)) for each in (batch.images, showers)]
        loss -= tf.reduce_mean(tf.reduce_sum(shares[0] * real["profiles"] + shares[1] * fake["fake_profiles"], axis=1))
        scores = {"real_score": tf.sigmoid(real["logits"]), "fake_score": tf.sigmoid(fake["logits"])}
        return loss, {**errors, **{name: tf.reduce_mean(score) for name, score in scores.items()}}

    def r1(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The squared gradient at real showers (Mescheder et al. 2018, arXiv:1801.04406, equation 9).

        The response has no part in it: its fluctuation is so small that the gradient must be large.
        """
        *shower, response, features = self._seen(batch.images, batch.conditions)
        outputs: dict[str, tf.Tensor] = {}

        def logits(shower: list[tf.Tensor]) -> tf.Tensor:
            outputs.update(nets.discriminator([*shower, response, features]))
            return outputs["logits"]

        penalty = losses.r1(logits, shower)
        # The heads do not affect the penalty; adding 0 times their outputs gives them gradients of 0.
        unused = tf.add_n([tf.reduce_sum(output) for output in outputs.values()])
        return 0.5 * self.options.r1_weight * self.options.r1_every * penalty + 0.0 * unused, {"penalty": penalty}

    def fool(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """What the heads estimate of generated showers; errors that the best estimate of a real one has are free."""
        showers = self.sample(nets, batch)
        fake = nets.discriminator(self._seen(showers, batch.conditions))
        energy, deposits = self._energy(batch.conditions), self._deposits(showers)
        usual = _USUAL * fake["spread"]
        loss, errors = self._weighted(
            losses.non_saturating_generator(fake["logits"]),
            _percent(tf.exp(fake["energy"]) * deposits / energy - 1.0, usual),
            self._angle_error(fake, batch.conditions),
            _percent(deposits / (tf.exp(fake["deposits"]) * energy) - 1.0, usual),
        )
        profile, mean_error = self._profile_loss(showers, fake)
        deviation = tf.abs(self._response(showers, energy) - fake["deposits"]) / (fake["spread"] + _TINY)
        spread = tf.reduce_mean(deviation * _clipped(tf.math.log(fake["fake_spread"] / fake["spread"])))
        return loss + self.options.profile_weight * (profile + spread), {**errors, "profile": mean_error}

    def _profile_loss(self, showers: tf.Tensor, heads: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """A loss with the gradient of the squared relative errors of the mean shares, and their mean error.

        The mean shares of generated showers, which a single shower does not know, are those that a head estimates.
        """
        errors = _clipped(heads["fake_profiles"] - heads["profiles"])
        wanted = tf.stop_gradient(tf.exp(heads["profiles"]))
        shares = self._profiles(self._shares(showers))
        loss = tf.reduce_mean(tf.reduce_sum(shares * errors / (wanted + _LEAST_SHARE), axis=1))
        return loss, tf.reduce_mean(tf.reduce_sum(wanted * tf.abs(errors), axis=1)) / 3.0

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        return nets.generator([batch.latents, batch.noise, batch.conditions])

    def evaluate(self, nets: Any, batch: Batch) -> dict[str, tf.Tensor]:
        """Compare generated with held-out showers of the same conditions: the deposits, and the mean depth (layers)."""
        showers = self.sample(nets, batch)
        made, real = (self._deposits(each) for each in (showers, batch.images))
        error = (made - real) / self._energy(batch.conditions)
        depths = [_mean_depth(self._cells(each)) for each in (showers, batch.images)]
        return {"deposits_error": error, "deposits_absolute_error": tf.abs(error), "depth_error": depths[0] - depths[1]}

    def _features(self, conditions: Any) -> tuple[Any, Any]:
        """What dense layers read of conditions (B, k): those and the logarithm of the energy; and the energy (B, 1)."""
        place = self.data.conditions.index(self.options.energy)
        energy, usual = self.data.physical(conditions, "conditions")[:, place : place + 1], 1.0
        if self.data.values is not None and self.data.values.conditions is not None:
            usual = float(self.data.values.conditions.channel(place).inverse(np.zeros((1, 1)))[0, 0])
        energy = ops.maximum(energy, _TINY)
        logarithm = ops.log(energy / max(usual, 1.0))
        return ops.concatenate([conditions, logarithm], axis=-1), energy

    def _energy(self, conditions: tf.Tensor) -> tf.Tensor:
        return self._features(conditions)[1][:, 0]

    def _cells(self, showers: tf.Tensor) -> tf.Tensor:
        """Energies of the cells in the unit of the data, (B, D, H, W)."""
        return self.data.physical(showers)[..., 0]

    def _deposits(self, showers: tf.Tensor) -> tf.Tensor:
        """Sums of the cells, (B,)."""
        return tf.reduce_sum(self._cells(showers), axis=(1, 2, 3))

    def _seen(self, showers: tf.Tensor, conditions: tf.Tensor) -> list[tf.Tensor]:
        """The inputs of the discriminator, on scales that do not depend on the energy of a shower."""
        features, energy = self._features(conditions)
        lengths, shares = self.data.shape[:3], self._shares(showers)
        scales = np.repeat(np.array(lengths, np.float32), lengths)
        return [
            tf.math.log1p(math.prod(lengths) * shares)[..., None],
            tf.math.log1p(_CONTRAST * scales * self._profiles(shares)),
            self._response(showers, energy[:, 0])[:, None],
            features,
        ]

    def _response(self, showers: tf.Tensor, energy: tf.Tensor) -> tf.Tensor:
        """Logarithms of the deposits over the energy, (B,)."""
        return tf.math.log(tf.nn.relu(self._deposits(showers)) / energy + _TINY)

    def _shares(self, showers: tf.Tensor) -> tf.Tensor:
        """Shares of the cells in the deposits, (B, D, H, W)."""
        cells = tf.nn.relu(self._cells(showers))
        return tf.math.divide_no_nan(cells, tf.reduce_sum(cells, axis=(1, 2, 3), keepdims=True))

    def _profiles(self, shares: tf.Tensor) -> tf.Tensor:
        """Shares of the layers, rows and columns in the deposits, (B, D + H + W)."""
        return tf.concat([tf.reduce_sum(shares, axis=others) for others in ((2, 3), (1, 3), (1, 2))], axis=1)

    def _angle_error(self, heads: dict[str, tf.Tensor], conditions: tf.Tensor) -> tf.Tensor:
        """Mean absolute error of the other conditions, in their own units; 0 if there are none."""
        if "angles" not in heads:
            return tf.zeros(())
        place, angles = self.data.conditions.index(self.options.energy), heads["angles"]
        estimates = tf.concat([angles[:, :place], conditions[:, place : place + 1], angles[:, place:]], axis=1)
        physical = [self.data.physical(each, "conditions") for each in (estimates, conditions)]
        return tf.reduce_sum(tf.abs(physical[0] - physical[1])) / tf.cast(tf.size(angles), tf.float32)

    def _weighted(
        self, real_fake: tf.Tensor, energy: tf.Tensor, angle: tf.Tensor, deposits: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The sum of the four losses, and each of them without its weight."""
        o = self.options
        weights = (o.real_fake_weight, o.energy_weight, o.angle_weight, o.deposits_weight)
        parts = {"real_fake": real_fake, "energy": energy, "angle": angle, "deposits": deposits}
        return tf.add_n([weight * part for weight, part in zip(weights, parts.values(), strict=True)]), parts


def _percent(errors: tf.Tensor, free: tf.Tensor | float = 0.0) -> tf.Tensor:
    """Mean of |error| in percent, as Keras's mean absolute percentage error; of what exceeds `free`, (B,), alone."""
    return 100.0 * tf.reduce_mean(tf.nn.relu(tf.abs(errors) - free))


def _clipped(logarithms: tf.Tensor) -> tf.Tensor:
    """Logarithms of ratios as constants from -1 to 1, so that the first, wrong estimates do little harm."""
    return tf.stop_gradient(tf.clip_by_value(logarithms, -1.0, 1.0))


def _mean_depth(cells: tf.Tensor) -> tf.Tensor:
    """Mean depth of the deposits, (B,), in layers from 0; 0 for an empty shower."""
    layers = tf.reduce_sum(cells, axis=(2, 3))  # (B, D)
    depths = tf.range(layers.shape[1], dtype=layers.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(layers * depths, axis=1), tf.reduce_sum(layers, axis=1))


RECIPE = Calo3D
