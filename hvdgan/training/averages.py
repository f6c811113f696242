"""Moving averages of the networks' weights over time."""

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from hvdgan.settings.config import Config
from hvdgan.training.train_state import TrainState, averaged_variables

RAMP_UP = 0.05
"""largest half-life as a fraction of the images seen"""


def move_averages(
    state: TrainState, finite_updates: Mapping[str, Sequence[tf.Tensor]], step: tf.Tensor, config: Config
) -> None:
    """Move each network's average, if it has one, towards its weights, unless all updates of it were not finite.

    With a decay per step, an average moves in the steps in which an update of the network was due. With a half-life it
    moves in every step, because the images of every step count.
    """
    moved, half_life = set[int](), config.ema_half_life
    if (scheduled := state.schedules.variables.get("ema_half_life")) is not None:
        half_life = scheduled.value
    share = share_at(step, config, half_life)
    for name in sorted(finite_updates.keys() & state.ema.keys()):
        finite = finite_updates[name]
        if not finite and half_life is None:
            continue
        alpha = tf.where(tf.reduce_any(finite), share, 0.0) if finite else share
        variables = averaged_variables(state.networks[name])
        for average, variable in zip(state.ema[name], variables, strict=True):
            if id(average) in moved:  # with another network that has the variable
                continue
            moved.add(id(average))
            # average -= share (average - variable), the product and the difference in one pass
            tf.raw_ops.ResourceApplyGradientDescent(
                var=average.value.handle,
                alpha=tf.cast(alpha, average.value.dtype),
                delta=average.value - variable.value,
            )


def share_at(step: tf.Tensor, config: Config, half_life: "float | tf.Tensor | None") -> tf.Tensor:
    """The share of the weights in their new average at a step, a scalar float32 in (0, 1]; the old one has the rest.

    With a half-life it is 1 - 0.5 ** (global_batch_size / h), where h is the half-life or RAMP_UP times the images seen
    before this step, whichever is less. So equal images seen give the same average at any batch size, as far as the
    weights are the same.

    Reference: Karras et al. 2018, arXiv:1710.10196, section A.1 (the average of the weights); Karras et al. 2021,
        arXiv:2106.12423, whose training uses the half-life in images and this ramp-up.
    """
    done = tf.cast(step, tf.float32)
    if half_life is None:
        assert config.ema_decay is not None
        # The weight of the old value is smaller at first, so that the initial weights are soon forgotten, as that of
        # TensorFlow's ExponentialMovingAverage.
        return 1.0 - tf.minimum(config.ema_decay, (1.0 + done) / (10.0 + done))
    half_lives = tf.maximum(config.global_batch_size / half_life, 1.0 / (RAMP_UP * done))
    # 0.5 ** x near 1 has few digits in float32, so 1 - 0.5 ** x is computed as one function. The average itself is
    # float32: it stops short of the weights by up to 6e-8 / share of its size, 0.01 % at a half-life of 1,000 steps.
    return -tf.math.expm1(-math.log(2.0) * half_lives)
