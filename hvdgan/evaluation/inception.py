"""Runs the Inception network of 2015-12-05, whose features every published FID uses, from its frozen graph.

The names and the preprocessing are those of these programs:
- https://github.com/bioinf-jku/TTUR, fid.py (Heusel et al. 2017): pictures from 0 to 255 of any size replace
  `ExpandDims:0`, and the features are `pool_3:0`. The graph itself resizes to 299 x 299 and scales to [-1, 1].
- https://github.com/openai/improved-gan, inception_score/model.py (Salimans et al. 2016): the class probabilities are
  the softmax of pool_3 times the weights of `softmax/logits/MatMul`, without the bias; torch-fidelity and StyleGAN2-ADA
  do the same.
- https://github.com/GaParmar/clean-fid, cleanfid/resize.py (Parmar et al. 2022): antialiased bicubic resizing to
  299 x 299 in float before the graph, clipped to 0 to 255 and not rounded; its first versions did not clip.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from hvdgan.errors import UserError, in_one_line
from hvdgan.settings.evaluation import INCEPTION_BYTES, INCEPTION_MD5

Method = Literal["clean", "legacy"]
"""clean: antialiased bicubic; legacy: the bilinear resizing of TensorFlow 1, which skips pixels"""
SIZE = (299, 299)
"""height and width that the graph resizes to (pixels)"""
_INPUT = "ExpandDims"
_FEATURES = "pool_3"
_LOGITS = "softmax/logits/MatMul"
_OLD_BATCH_NORM = "BatchNormWithGlobalNormalization"
_FETCH = "get it with hvdgan features fetch"


def resize(pictures: tf.Tensor, size: tuple[int, int], method: Method) -> tf.Tensor:
    """Resize pictures in float32, without rounding.

    `clean` equals Pillow's bicubic filter on single channels in mode F, up to float32 rounding, clipped to 0 to 255 as
    in clean-fid: the filter overshoots at edges by up to 40. `legacy` has neither antialiasing nor centred pixels, and
    is what FID used at first, inside the Inception graph.

    Reference:
        Parmar et al. 2022, "On Aliased Resizing and Surprising Subtleties in GAN Evaluation".
    """
    if tuple(pictures.shape[1:3]) == size:
        return pictures
    if method == "legacy":
        return tf.raw_ops.ResizeBilinear(images=pictures, size=size, align_corners=False, half_pixel_centers=False)
    # Its operation, ScaleAndTranslate, has a kernel for CPUs only, of one thread. With a GPU, TensorFlow copies the
    # small pictures to the CPU and the large ones back. Two matrix products would stay on the GPU, but compute in
    # TensorFloat-32 there, with an error of 0.1 of 255.
    return tf.clip_by_value(tf.image.resize(pictures, size, "bicubic", antialias=True), 0.0, 255.0)


def load_inception(path: Path, method: Method) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """Load the frozen graph."""
    try:
        graph, weights, matrix = _needed(_read(path), path)
    except (IndexError, KeyError, TypeError, ValueError) as error:  # a node lacks inputs or a value
        raise UserError(
            f"--inception {path}: is not the graph of 2015-12-05: {in_one_line(error)}; {_FETCH}"
        ) from error

    def compute(pictures: tf.Tensor) -> dict[str, tf.Tensor]:
        numbers = tf.cast(pictures, tf.float32)
        if method == "clean":
            numbers = resize(numbers, SIZE, method)
        if numbers.shape[-1] == 1:
            numbers = tf.repeat(numbers, 3, axis=-1)
        # A trace captures the weights. As constants, each trace would hold and optimise 95 MB of its own, for seconds.
        given = {f"{_INPUT}:0": numbers, **{f"{name}:0": tf.identity(value) for name, value in weights.items()}}
        try:
            (pooled,) = tf.compat.v1.import_graph_def(graph, given, [f"{_FEATURES}:0"], name="inception")
        except (ValueError, tf.errors.OpError) as error:
            raise UserError(f"--inception {path}: TensorFlow cannot import it: {in_one_line(error)}") from error
        made = [each for each in pooled.graph.get_operations() if each.name.startswith("inception")]
        if acting := {each.type for each in made if each.op_def.is_stateful} - {"CheckNumerics"}:
            raise UserError(f"--inception {path}: does more than compute, by {', '.join(sorted(acting))}; {_FETCH}")
        features = tf.squeeze(pooled, (1, 2))
        return {"features": features, "logits": features @ matrix}

    return compute


def is_published(path: Path) -> bool:
    """Whether the size and the MD5 of a file are those of the graph that published FIDs use."""
    if path.stat().st_size != INCEPTION_BYTES:
        return False
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == INCEPTION_MD5


def _read(path: Path) -> Any:
    graph = tf.compat.v1.GraphDef()
    try:
        graph.ParseFromString(path.read_bytes())
    except OSError as error:
        raise UserError(f"--inception {path}: {error.strerror}; {_FETCH}") from error
    except Exception as error:  # protobuf's DecodeError, whose module differs between its versions
        raise UserError(f"--inception {path}: is not a frozen graph, or is cut off; {_FETCH}") from error
    return graph


def _needed(graph: Any, path: Path) -> tuple[Any, dict[str, tf.Tensor], tf.Tensor]:
    """Copy the nodes between the input and the features, as today's TensorFlow can run them in a function.

    What is left out are the JPEG decoder, and `pool_3/_reshape`, which makes the batch one row of 2,048.
    """
    nodes = {node.name: node for node in graph.node}
    if missing := [name for name in (_INPUT, _FEATURES, _LOGITS) if name not in nodes]:
        raise UserError(
            f"--inception {path}: has no node {missing[0]}; expected classify_image_graph_def.pb of "
            f"inception-2015-12-05.tgz; {_FETCH}"
        )
    nodes = {each.name: each for node in graph.node for each in _of_today(node, nodes)}
    kept: set[str] = set()
    waiting = [_FEATURES]
    while waiting:
        name = waiting.pop()
        if name not in kept and name != _INPUT and name in nodes:
            kept.add(name)
            waiting += map(_node_of, nodes[name].input)
    needed, weights = tf.compat.v1.GraphDef(), {}
    needed.versions.producer = tf.version.GRAPH_DEF_VERSION
    for node in [node for name, node in nodes.items() if name in kept]:
        if node.op == "Const" and node.attr["dtype"].type == tf.float32.as_datatype_enum and _value(node).ndim:
            weights[node.name] = tf.constant(_value(node))
        else:
            needed.node.append(node)
    return needed, weights, tf.constant(_value(nodes[_node_of(nodes[_LOGITS].input[1])]))


def _of_today(node: Any, nodes: dict[str, Any]) -> Iterator[Any]:
    """Replace a batch normalisation that TensorFlow has removed by FusedBatchNormV3; other nodes stay.

    A graph of GraphDef version 8 may hold the old operation, but a function has the version of the TensorFlow that runs
    it. Its inputs are x, mean, variance, beta, gamma; it does not use gamma unless `scale_after_normalization` is true.
    """
    if node.op != _OLD_BATCH_NORM:
        yield node
        return
    x, mean, variance, beta, gamma, *controls = node.input
    if not node.attr["scale_after_normalization"].b:
        ones = np.ones_like(_value(nodes[_node_of(gamma)]))
        gamma = f"{node.name}/ones"
        yield _node("Const", gamma, dtype=tf.float32, value=ones)
    epsilon = node.attr["variance_epsilon"].f
    yield _node(
        "FusedBatchNormV3",
        node.name,
        [x, gamma, beta, mean, variance, *controls],
        T=tf.float32,
        U=tf.float32,
        epsilon=epsilon,
        is_training=False,
    )


def _node(operation: str, name: str, inputs: list[str] | None = None, **attributes: Any) -> Any:
    node = tf.compat.v1.NodeDef(op=operation, name=name, input=inputs or ())
    for key, value in attributes.items():
        if isinstance(value, tf.DType):
            node.attr[key].type = value.as_datatype_enum
        elif isinstance(value, bool):
            node.attr[key].b = value
        elif isinstance(value, float):
            node.attr[key].f = value
        else:
            node.attr[key].tensor.CopyFrom(tf.make_tensor_proto(value))
    return node


def _value(constant: Any) -> np.ndarray:
    return tf.make_ndarray(constant.attr["value"].tensor)


def _node_of(text: str) -> str:
    """The name of the node in an input of a node: `^name`, `name` or `name:output`."""
    return text.removeprefix("^").partition(":")[0]
