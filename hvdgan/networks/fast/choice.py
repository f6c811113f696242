"""Chooses the layers and optimizers that compute with fast kernels.

The kernels rest on parts of Keras that are not public. A Keras or TensorFlow that is newer than those of the tests may
have changed them: there each kernel is compared with Keras' own first, and left out, with a warning, if it fails.
"""

import functools
import re
from collections.abc import Callable, Iterable

import keras
import numpy as np
import tensorflow as tf

from hvdgan.cli.launcher import warn_once
from hvdgan.networks.devices import device
from hvdgan.networks.fast.kernels import (
    FastConv2D,
    FastConv2DTranspose,
    FastLeakyReLU,
    FusedAdam,
    FusedBatchNormalization,
)
from hvdgan.networks.nested_layers import change_class, change_classes

NEWEST_TESTED = {"Keras": (3, 15), "TensorFlow": (2, 21)}
"""newest versions that the tests have run with; launch/constraints*.txt pin them"""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal, in Keras' messages


def use_fast_kernels(networks: Iterable[keras.Model], optimizers: Iterable[keras.optimizers.Optimizer]) -> None:
    """Let layers and optimizers compute with the kernels of hvdgan.networks.fast.

    hvdgan.networks.devices.device says which of them are for this device.

    Args:
        networks: built networks; their variables and names stay as they are.
        optimizers: optimizers of any kind, of which only Adam is changed.
    """
    fast: dict[type, type] = {
        keras.layers.BatchNormalization: FusedBatchNormalization,
        keras.layers.LeakyReLU: FastLeakyReLU,
    }
    if device.chosen().products:
        fast |= {keras.layers.Conv2D: FastConv2D, keras.layers.Conv2DTranspose: FastConv2DTranspose}
    change_classes(networks, {plain: kernel for plain, kernel in fast.items() if works(kernel)})
    for optimizer in optimizers:
        if type(optimizer) is keras.optimizers.Adam and not optimizer.amsgrad and works(FusedAdam):
            change_class(optimizer, FusedAdam)


def works(kernel: type) -> bool:
    """Whether a fast kernel may be used with this Keras and TensorFlow; if not, a warning says why."""
    versions = {"Keras": keras.__version__, "TensorFlow": tf.__version__}
    newer = {name: text for name, text in versions.items() if _series(text) > NEWEST_TESTED[name]}
    if not newer:
        return True
    problem = problem_of(kernel)
    if problem:
        named = " and ".join(f"{name} {text}" for name, text in newer.items())
        warn_once(f"{kernel.__name__} does not fit {named} ({problem}); Keras' own kernel is used, which is slower")
    return not problem


@functools.cache
def problem_of(kernel: type) -> str:
    """Compare a fast kernel with Keras' own on small numbers; empty if they agree."""
    try:
        plain, fast = (_TRIALS[kernel](change) for change in (lambda _: None, lambda each: change_class(each, kernel)))
    except Exception as error:  # whatever a changed library raises
        words = " ".join(_COLOURS.sub("", str(error)).split())
        return f"{type(error).__name__}: {words[:120]}"
    agree = len(plain) == len(fast) and all(
        np.allclose(mine, other, rtol=1e-3, atol=1e-4) for mine, other in zip(fast, plain, strict=True)
    )
    return "" if agree else "its results differ from those of Keras"


Change = Callable[[keras.Layer | keras.optimizers.Optimizer], None]


def _layer_trial(make: Callable[[], keras.Layer], shape: tuple[int, ...]) -> Callable[[Change], list[np.ndarray]]:
    """A function that returns the output, the gradients and the state of a new layer after a call in training."""

    def trial(change: Change) -> list[np.ndarray]:
        layer = make()
        layer.build(shape)
        layer.set_weights([_numbers(weight.shape) + 0.5 for weight in layer.get_weights()])
        change(layer)
        images = tf.constant(_numbers(shape))
        variables = [variable.value for variable in layer.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(images)
            output = layer(images, training=True)
            loss = tf.reduce_sum(output * _numbers(output.shape))
        gradients = tape.gradient(loss, [images, *variables])
        return [output.numpy(), *(each.numpy() for each in gradients), *layer.get_weights()]

    return trial


def _adam_trial(change: Change) -> list[np.ndarray]:
    """The variable and the optimizer's variables after two steps."""
    variable = keras.Variable(_numbers((3, 2)), name="trial")
    optimizer = keras.optimizers.Adam(0.1, name="trial")
    optimizer.build([variable])
    change(optimizer)
    for number in (1.0, 2.0):
        optimizer.apply([tf.constant(number * _numbers((3, 2)))])
    return [np.asarray(each) for each in (variable, *optimizer.variables)]


def _numbers(shape: tuple[int, ...]) -> np.ndarray:
    """Numbers from -1 to 1, the same at each call."""
    return np.sin(np.arange(np.prod(shape), dtype=np.float32) ** 1.5).reshape(shape).astype(np.float32)


def _series(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


_TRIALS: dict[type, Callable[[Change], list[np.ndarray]]] = {
    FusedBatchNormalization: _layer_trial(lambda: keras.layers.BatchNormalization(name="trial"), (2, 3, 3, 2)),
    FastLeakyReLU: _layer_trial(lambda: keras.layers.LeakyReLU(name="trial"), (2, 3)),
    # Of shapes for which they are matrix products.
    FastConv2D: _layer_trial(lambda: keras.layers.Conv2D(16, 4, 2, "same", name="trial"), (1, 4, 4, 8)),
    FastConv2DTranspose: _layer_trial(
        lambda: keras.layers.Conv2DTranspose(16, 4, 2, "same", name="trial"), (1, 2, 2, 8)
    ),
    FusedAdam: _adam_trial,
}
