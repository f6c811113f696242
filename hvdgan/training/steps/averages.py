"""Moving averages of the networks' weights over time."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from hvdgan.training.variables.state import TrainState
from hvdgan.training.variables.statistics import averaged_variables


def move_averages(state: TrainState, verdicts: Mapping[str, Sequence[tf.Tensor]], decay: tf.Tensor) -> None:
    """Move each network's average towards its weights, if an update of the network was finite.

    Args:
        state: networks and their averages, which change.
        verdicts: scalar bools of each averaged network, one per update that was due; True if it was finite.
        decay: result of decay_at().
    """
    for name in sorted(name for name, finite in verdicts.items() if finite):
        alpha = tf.where(tf.reduce_any(verdicts[name]), 1.0 - decay, 0.0)
        variables = averaged_variables(state.networks[name])
        for average, variable in zip(state.ema[name], variables, strict=True):
            # average -= (1 - decay) (average - variable), the product and the difference in one pass
            tf.raw_ops.ResourceApplyGradientDescent(
                var=average.value.handle, alpha=alpha, delta=average.value - variable.value
            )


def decay_at(step: tf.Tensor, decay: float) -> tf.Tensor:
    """The weight of an average's old value, smaller at first, so that the initial weights are soon forgotten.

    TensorFlow's ExponentialMovingAverage uses the same formula.
    """
    done = tf.cast(step, tf.float32)
    return tf.minimum(decay, (1.0 + done) / (10.0 + done))
