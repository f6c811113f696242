"""TensorFlow's remapper, a pass of its graph optimizer, is switched off for the run where it would fail on a step."""

import tensorflow as tf


def switch_off_if_it_fails(graph: tf.Graph) -> None:
    """Switch the remapper off if it would fail on this graph; otherwise leave it on.

    It fuses a convolution, its bias and a leaky ReLU into one kernel, and fails where the leaky ReLU's gradient reads
    the biased convolution: nothing is fused, and every rank prints an error. hvdgan's leaky ReLU layer reads its output
    (hvdgan/networks/fast_layers.py); tf.nn.leaky_relu and the activation "leaky_relu" read their input.

    Args:
        graph: of a traced step.
    """
    whole = graph.as_graph_def()
    if any(_fails(nodes) for nodes in (whole.node, *(function.node_def for function in whole.library.function))):
        tf.config.optimizer.set_experimental_options({"remapping": False})


def _fails(nodes: "list[tf.compat.v1.NodeDef]") -> bool:
    """Whether the gradient of a leaky ReLU reads a sum with a bias, among the nodes of one graph or function."""
    operations = {node.name: node.op for node in nodes}
    read = [node.input[1].split(":")[0] for node in nodes if node.op == "LeakyReluGrad"]
    return any(operations.get(name) == "BiasAdd" for name in read)
