"""A function whose gradient computes its results again: only the function's inputs are kept until then.

tf.recompute_grad does the same, but fits no GAN: it runs a BatchNorm's update of its statistics twice, reads variables
when the gradient is computed, which another update may have changed since, and keeps all activations if the gradient
itself is differentiated, as for a gradient penalty.

Reference: Chen et al. 2016, arXiv:1604.06174, section 4.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

try:
    # Not public; tests/networks/test_recomputation.py fails if it no longer says whether a tape is recording.
    from tensorflow.python.eager.record import could_possibly_record
except ImportError:

    def could_possibly_record() -> bool:
        """Without TensorFlow's answer each gradient is computed as if it were differentiated, which is slower."""
        return True


Function = Callable[..., Sequence[tf.Tensor]]
"""function of tensors; it must give the same results when it is called again, and read no variables"""


def recomputed(function: Function, *tensors: tf.Tensor) -> list[tf.Tensor]:
    """Call a function on tensors, and compute its inner results again when a gradient needs them.

    Args:
        function: function of these tensors.
        tensors: tensors to call it on; the floating-point ones are differentiated.

    Returns:
        The function's results.
    """

    @tf.custom_gradient
    def run(*given: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., list[tf.Tensor | None]]]:
        def backward(*slopes: tf.Tensor) -> list[tf.Tensor | None]:
            # The backward pass must have arrived here. Otherwise TensorFlow would compute the results again at once, or
            # take the first ones, which are equal, and keep them.
            with tf.control_dependencies(slopes):
                held = [tf.identity(each) for each in given]
            # A tape that records now will differentiate these gradients, which would keep what they are computed from.
            compute = recomputed if could_possibly_record() else _plainly
            places: list[int] = []
            found = compute(_gradient_of(function, len(given), places), *held, *slopes)
            gradients = dict(zip(places, found, strict=True))
            return [gradients.get(place) for place in range(len(given))]

        return list(function(*given)), backward

    results = run(*tensors)
    return list(results) if isinstance(results, list | tuple) else [results]


def _gradient_of(function: Function, count: int, places: list[int]) -> Function:
    """A function of the inputs and of the gradients of its results, which returns gradients of the inputs.

    Args:
        function: function to differentiate.
        count: number of its inputs.
        places: receives the numbers of the inputs whose gradients are returned; the results do not depend on others.
    """

    def gradient(*tensors: tf.Tensor) -> list[tf.Tensor]:
        inputs, slopes = tensors[:count], tensors[count:]
        chosen = [place for place, each in enumerate(inputs) if each.dtype.is_floating]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([inputs[place] for place in chosen])
            results = function(*inputs)
        gradients = tape.gradient(results, [inputs[place] for place in chosen], list(slopes))
        places[:] = [place for place, found in zip(chosen, gradients, strict=True) if found is not None]
        return [tf.convert_to_tensor(found) for found in gradients if found is not None]

    return gradient


def _plainly(function: Function, *tensors: tf.Tensor) -> Sequence[tf.Tensor]:
    return function(*tensors)
