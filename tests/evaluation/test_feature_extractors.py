"""What --eval-features names: Keras files, the features of a recipe, the Inception network, and what is refused.
Modules: evaluation.feature_extractors, evaluation.inception"""

import hashlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from PIL import Image

from building import tiny_run
from hvdgan.errors import UserError
from hvdgan.evaluation import inception
from hvdgan.evaluation.feature_extractors import open_features
from hvdgan.evaluation.sets import SampleBatch
from hvdgan.recipe import DataSpec
from pooled import pooled
from tiny import Tiny

CLASSES, DIMENSION = 1008, 2048
# Fields of an attribute by the type of its value; a list is of whole numbers.
_FIELDS = {bool: "b", int: "i", float: "f", bytes: "s"}


class Nodes:
    """Nodes of a GraphDef that is being made."""

    def __init__(self, content=b""):
        self.graph = tf.compat.v1.GraphDef.FromString(content)
        self.graph.versions.producer = 8  # BatchNormWithGlobalNormalization ended in 9

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


def frozen_graph(*, scale_after_normalization=False):
    """A small graph with the names, operations and faults of classify_image_graph_def.pb of 2015-12-05.

    It has one convolution and one mixed block; all before and after them is as in the real one.
    """
    random, kind, nodes = np.random.default_rng(0), {"T": tf.float32}, Nodes()
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


GREY, FIELDS, RGB = DataSpec((8, 8, 1), 10), DataSpec((6, 6, 2), 10), DataSpec((40, 64, 3), 10)


def opened(text, spec=GREY, method="clean", file=None):
    return open_features(str(text), spec, inception=file, resize=method, batch_size=8)


def rows(features, samples):
    """The features and probabilities of pictures, uint8, or of arrays."""
    seen = samples.astype(np.float32) / 127.5 - 1 if samples.dtype == np.uint8 else samples
    return features.extract(SampleBatch(np.arange(len(seen)), seen.astype(np.float32), None, None, {}))


def refused(text, spec=GREY, file=None):
    with pytest.raises(UserError) as caught:
        opened(text, spec, file=file)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pictures(count=3, shape=(8, 8, 1), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape)).astype(np.uint8)


def network(shape=(8, 8, 1), outputs=lambda flat, classes: flat, **more):
    """A network whose features are its input, and whose classes are a layer of them."""
    given = keras.Input(shape, **more)
    flat = layers.Flatten()(given) if None not in shape else layers.GlobalAveragePooling2D()(given)
    return keras.Model(given, outputs(flat, layers.Dense(3)(flat)))


def saved(tmp_path, model, name="net.keras"):
    model.save(tmp_path / name)
    return tmp_path / name


def test_samples_reach_a_network_as_networks_see_them_and_logits_become_probabilities(tmp_path):
    path = saved(tmp_path, network())
    features = opened(path)
    numbers, probabilities = rows(features, pictures())
    np.testing.assert_allclose(numbers, pictures().reshape(3, 64) / 127.5 - 1, atol=1e-6)
    assert numbers.dtype == np.float32 and probabilities is None and opened("none").extract is None
    assert (features.name, features.resize, features.frechet) == (str(path), "none", "frechet")
    assert features.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    fields = np.random.default_rng(0).normal(0, 9, (4, 6, 6, 2)).astype(np.float32)
    model = network((6, 6, 2), lambda flat, classes: {"logits": classes, "features": flat})
    features = opened(saved(tmp_path, model), FIELDS)
    numbers, probabilities = rows(features, fields)
    np.testing.assert_array_equal(numbers, fields.reshape(4, 72))
    dense = next(layer for layer in model.layers if isinstance(layer, layers.Dense))
    np.testing.assert_allclose(probabilities, tf.nn.softmax(dense(fields.reshape(4, 72))), atol=1e-5)
    assert features.classes == 3


def test_pictures_are_resized_to_a_network_of_fixed_size_only(tmp_path):
    large, given = DataSpec((16, 24, 1), 10), pictures(shape=(16, 24, 1))
    fixed, free = saved(tmp_path, network()), saved(tmp_path, network((None, None, 1)), "free.keras")
    for how, expected in (
        ("clean", tf.reshape(tf.image.resize(given, (8, 8), "bicubic", antialias=True), (3, 64))),
        ("legacy", given[:, ::2, ::3].reshape(3, 64)),
    ):
        features = opened(fixed, large, how)
        np.testing.assert_allclose(rows(features, given)[0], expected / 127.5 - 1, atol=1e-5)
        assert features.resize == how
    unchanged = opened(free, large)
    assert unchanged.resize == "none"
    np.testing.assert_allclose(rows(unchanged, given)[0], given.mean(axis=(1, 2)) / 127.5 - 1, atol=1e-5)
    numbers, _ = rows(opened(saved(tmp_path, network((8, 8, 3)), "rgb.keras")), pictures())  # of grey pictures
    np.testing.assert_allclose(numbers, np.repeat(pictures(), 3, axis=-1).reshape(3, 192) / 127.5 - 1, atol=1e-6)


def test_what_is_no_network_or_does_not_fit_is_refused_in_one_line(tmp_path):
    assert "there is no such file" in refused(tmp_path / "gone.keras")
    whole = saved(tmp_path, network()).read_bytes()
    (tmp_path / "cut.keras").write_bytes(whole[: len(whole) // 2])
    assert "or is cut off" in refused(tmp_path / "cut.keras")
    for text in ("inceptionv3", "some/folder", "module:function"):
        assert f"--eval-features {text}: expected none, inception, recipe or FILE.keras; a SavedModel" in refused(text)
    code = keras.Sequential([keras.Input((8, 8, 1)), layers.Lambda(lambda x: x * 2), layers.Flatten()])
    assert "Lambda" in refused(saved(tmp_path, code, "code.keras"))  # it is not run
    path = tmp_path / "net.keras"
    assert "takes samples of shape (8, 8, 1), and the data have (6, 6, 2)" in refused(path, FIELDS)
    assert "the data have pictures (8, 8, 3); RGB is not made grey" in refused(path, DataSpec((8, 8, 3), 10))


def test_the_features_of_a_recipe_may_have_class_probabilities_and_follow_its_networks():
    class Judged(Tiny):
        def features(self, nets, batch):
            flat = tf.reshape(batch.images, (-1, 64))[:, :5]
            return tf.concat([flat, nets.discriminator(batch.images)], axis=1), tf.nn.softmax(flat)

    run = tiny_run(Judged, eval_samples=100, eval_features="recipe")
    first = run.comparison(print)
    assert run.comparison(print) == first and 1 < first["eval/inception_score"] < 5
    for variable in run.state.networks["discriminator"].trainable_variables:
        variable.assign(2 * variable)
    assert run.comparison(print)["eval/frechet"] != first["eval/frechet"]
    with pytest.raises(UserError, match=r"--eval-features recipe: it has no features\(self, nets, batch\)"):
        tiny_run(eval_samples=100, eval_features="recipe")


@pytest.fixture(scope="module")
def graph():
    return frozen_graph()


@pytest.fixture(scope="module")
def file(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("inception") / "classify_image_graph_def.pb"
    path.write_bytes(graph)
    return path


def of_inception(path, spec=RGB, method="legacy"):
    return opened("inception", spec, method, path)


def test_it_is_what_the_published_programs_compute(tmp_path):
    """Five pictures at once equal five runs of the unchanged graph; the bias of the classes is left out."""
    content = frozen_graph(scale_after_normalization=True)
    (tmp_path / "graph.pb").write_bytes(content)
    features, given = of_inception(tmp_path / "graph.pb"), pictures(5, RGB.shape)
    found, probabilities = rows(features, given)
    expected, logits = run_as_published(content, given)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(probabilities, tf.nn.softmax(logits), rtol=1e-5)
    assert (features.dimension, features.classes, features.frechet) == (DIMENSION, CLASSES, "fid")
    assert found.shape == (5, DIMENSION) and np.ptp(found) > 0.1
    grey, resized = given[:2, ..., :1], [by_pillow(each, (299, 299)).clip(0, 255) for each in given[:2, ..., [0, 0, 0]]]
    clean, _ = rows(of_inception(tmp_path / "graph.pb", DataSpec((40, 64, 1), 10), "clean"), grey)
    np.testing.assert_allclose(clean, run_as_published(content, resized)[0], rtol=1e-4, atol=1e-5)


def by_pillow(picture, size):
    """The bicubic filter of Pillow on each channel in mode F, without clipping."""
    channels = [Image.fromarray(picture[..., channel].astype(np.float32)) for channel in range(picture.shape[-1])]
    return np.stack([np.asarray(each.resize(size[::-1], Image.BICUBIC)) for each in channels], axis=-1)


def test_only_the_published_file_gives_published_fids(file, monkeypatch):
    run = tiny_run(eval_samples=10, eval_features="inception", inception=file)
    assert any("eval/fid cannot be compared with them" in line for line in run.comparison.remarks())
    assert run.comparison.facts()["published"] is False
    assert "eval/modes" not in run.comparison.names and "eval/inception_score" in run.comparison.names
    monkeypatch.setattr(inception, "INCEPTION_BYTES", file.stat().st_size)
    monkeypatch.setattr(inception, "INCEPTION_MD5", hashlib.md5(file.read_bytes()).hexdigest())
    assert of_inception(file).published is True
    assert tiny_run(eval_samples=20, eval_features=pooled()).comparison.facts()["published"] is None


def test_a_file_of_inception_that_is_missing_or_broken(file, graph, tmp_path, monkeypatch):
    monkeypatch.delenv("HVDGAN_INCEPTION", raising=False)
    for path in (None, tmp_path / "gone.pb"):
        said = refused("inception", RGB, path)
        assert "hvdgan features fetch" in said and "--inception FILE" in said and "HVDGAN_INCEPTION" in said
    assert "takes pictures of 1 or 3 channels" in refused("inception", DataSpec((8, 8, 2), 10), file)
    monkeypatch.setenv("HVDGAN_INCEPTION", str(file))
    assert of_inception(None).digest == hashlib.sha256(graph).hexdigest()
    (tmp_path / "graph.pb").write_bytes(graph[: len(graph) // 2])
    assert "is not a frozen graph, or is cut off" in refused("inception", RGB, tmp_path / "graph.pb")


def test_a_graph_that_would_write_a_file_is_refused_and_writes_none(graph, tmp_path):
    """The settings of a run may name it, and they may come from a stranger."""
    nodes = Nodes(graph)
    nodes.constant("path", str(tmp_path / "pwned"), tf.string)
    nodes.constant("text", "x", tf.string)
    nodes.add("act", "WriteFile", "path", "text")
    next(each for each in nodes.graph.node if each.name == "pool_3").input.append("^act")
    (tmp_path / "graph.pb").write_bytes(nodes.graph.SerializeToString())
    assert "WriteFile" in refused("inception", RGB, tmp_path / "graph.pb")
    assert not (tmp_path / "pwned").exists()
