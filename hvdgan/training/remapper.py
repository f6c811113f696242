"""Switches TensorFlow's remapper, a pass of its graph optimizer, off for the run if it would fail on a step."""

import tensorflow as tf

from hvdgan.training.graphs import operations


def switch_off_if_it_fails(graph: tf.Graph) -> None:
    """Switch the remapper off if it would fail on this graph; otherwise leave it on.

    It fuses a convolution, its bias and a leaky ReLU into one kernel, and fails if the gradient of the leaky ReLU reads
    the biased convolution: nothing is fused, and every rank prints an error. The gradient of hvdgan's leaky ReLU layer
    reads the layer's output (hvdgan/networks/fast/kernels.py); those of tf.nn.leaky_relu and of the activation
    "leaky_relu" read its input.

    Args:
        graph: graph of a traced step.
    """
    found = (chain[-1] for chain, _ in operations(graph))
    if any(each.type == "LeakyReluGrad" and each.inputs[1].op.type == "BiasAdd" for each in found):
        tf.config.optimizer.set_experimental_options({"remapping": False})
