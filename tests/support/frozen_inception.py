"""A small frozen graph with the names, operations and faults of classify_image_graph_def.pb of 2015-12-05."""

import numpy as np
import tensorflow as tf

VERSION = 8
"""before 9, in which BatchNormWithGlobalNormalization ended"""
CLASSES = 1008
DIMENSION = 2048


# Fields of an attribute by the type of its value; a list is of whole numbers.
_FIELDS = {bool: "b", int: "i", float: "f", bytes: "s"}


class Nodes:
    """Nodes of a GraphDef that is being made."""

    def __init__(self):
        self.graph = tf.compat.v1.GraphDef()
        self.graph.versions.producer = VERSION

    def add(self, name, operation, *inputs, **attributes):
        node = self.graph.node.add(name=name, op=operation, input=inputs)
        for key, value in attributes.items():
            if isinstance(value, tf.DType):
                node.attr[key].type = value.as_datatype_enum
            elif isinstance(value, list):
                node.attr[key].list.i.extend(value)
            else:
                setattr(node.attr[key], _FIELDS[type(value)], value)

    def constant(self, name, value, kind=tf.float32):
        node = self.graph.node.add(name=name, op="Const")
        node.attr["dtype"].type = kind.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, kind))


def frozen_graph(seed=0, *, scale_after_normalization=False):
    """The bytes of the graph: one convolution and one mixed block; all before and after them is as in the real one."""
    random, kind, nodes = np.random.default_rng(seed), {"T": tf.float32}, Nodes()
    nodes.constant("DecodeJpeg/contents", b"", tf.string)
    nodes.add("DecodeJpeg", "DecodeJpeg", "DecodeJpeg/contents", channels=3, ratio=1)
    nodes.add("Cast", "Cast", "DecodeJpeg", SrcT=tf.uint8, DstT=tf.float32)
    nodes.constant("ExpandDims/dim", 0, tf.int32)
    nodes.add("ExpandDims", "ExpandDims", "Cast", "ExpandDims/dim", **kind)
    nodes.constant("ResizeBilinear/size", [299, 299], tf.int32)
    nodes.add("ResizeBilinear", "ResizeBilinear", "ExpandDims", "ResizeBilinear/size", **kind)
    nodes.constant("Sub/y", 128.0)
    nodes.add("Sub", "Sub", "ResizeBilinear", "Sub/y", **kind)
    nodes.constant("Mul/y", 1 / 128)
    nodes.add("Mul", "Mul", "Sub", "Mul/y", **kind)
    nodes.constant("conv/conv2d_params", random.normal(0, 0.2, (3, 3, 3, 16)))
    nodes.add("conv/Conv2D", "Conv2D", "Mul", "conv/conv2d_params", strides=[1, 8, 8, 1], padding=b"VALID", **kind)
    lowest = {"moving_mean": -1, "moving_variance": 0.5, "beta": -1, "gamma": 0.5}
    given = ["conv/Conv2D", *(f"conv/batchnorm/{name}" for name in lowest)]
    for name, low in zip(given[1:], lowest.values(), strict=True):
        nodes.constant(name, random.uniform(low, 1.5, 16))
    more = {"variance_epsilon": 0.001, "scale_after_normalization": scale_after_normalization, **kind}
    nodes.add("conv/batchnorm", "BatchNormWithGlobalNormalization", *given, **more)
    nodes.add("conv/CheckNumerics", "CheckNumerics", "conv/batchnorm", message=b"not finite", **kind)
    nodes.add("conv/control_dependency", "Identity", "conv/batchnorm", "^conv/CheckNumerics", **kind)
    nodes.add("conv", "Relu", "conv/control_dependency", **kind)
    nodes.add("mixed_10/tower/pool", "MaxPool", "conv", ksize=[1, 3, 3, 1], strides=[1] * 4, padding=b"SAME", **kind)
    for name, given in (("mixed_10/conv", "conv"), ("mixed_10/tower/conv", "mixed_10/tower/pool")):
        nodes.constant(f"{name}/conv2d_params", random.normal(0, 0.5, (1, 1, 16, DIMENSION // 2)))
        nodes.add(name, "Conv2D", given, f"{name}/conv2d_params", strides=[1] * 4, padding=b"SAME", **kind)
    nodes.constant("mixed_10/join/concat_dim", 3, tf.int32)
    joined = ["mixed_10/join/concat_dim", "mixed_10/conv", "mixed_10/tower/conv"]
    nodes.add("mixed_10/join", "Concat", *joined, N=2, **kind)
    nodes.add("pool_3", "AvgPool", "mixed_10/join", ksize=[1, 38, 38, 1], strides=[1] * 4, padding=b"VALID", **kind)
    nodes.constant("pool_3/_reshape/shape", [1, DIMENSION], tf.int32)
    nodes.add("pool_3/_reshape", "Reshape", "pool_3", "pool_3/_reshape/shape", **kind)
    nodes.constant("softmax/weights", random.normal(0, 0.01, (DIMENSION, CLASSES)))
    nodes.constant("softmax/biases", random.normal(0, 1, CLASSES))
    nodes.add("softmax/logits/MatMul", "MatMul", "pool_3/_reshape", "softmax/weights", **kind)
    nodes.add("softmax/logits", "BiasAdd", "softmax/logits/MatMul", "softmax/biases", **kind)
    nodes.add("softmax", "Softmax", "softmax/logits", **kind)
    return nodes.graph.SerializeToString()


def run_as_published(content, pictures):
    """Run an unchanged graph as the programs of 2016 and 2017 did: in a session, one picture at a time.

    Returns:
        pool_3 (B, 2048), and softmax/logits/MatMul (B, 1008), to which the bias has not been added.
    """
    graph = tf.compat.v1.GraphDef.FromString(content)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        wanted = tf.compat.v1.import_graph_def(graph, return_elements=["pool_3:0", "softmax/logits/MatMul:0"], name="")
        done = [session.run(wanted, {"ExpandDims:0": picture[None].astype(np.float32)}) for picture in pictures]
    return np.concatenate([pooled for pooled, _ in done])[:, 0, 0], np.concatenate([logits for _, logits in done])
