"""The Inception network of FID, on a small graph with the names, operations and faults of the real one."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from building import tiny_run
from frozen_inception import CLASSES, DIMENSION, Nodes, frozen_graph, run_as_published
from hvdgan.cli.errors import UserError
from hvdgan.evaluation import inception
from hvdgan.evaluation.features import open_features
from hvdgan.recipe import DataSpec

RGB = DataSpec((40, 64, 3), 10)


@pytest.fixture(scope="module")
def graph():
    return frozen_graph()


@pytest.fixture(scope="module")
def file(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("inception") / "classify_image_graph_def.pb"
    path.write_bytes(graph)
    return path


def drawn(count=5, shape=RGB.shape):
    return np.random.default_rng(1).integers(0, 256, (count, *shape)).astype(np.uint8)


def opened(path, spec=RGB, resize="legacy"):
    return open_features("inception", spec, inception=path, resize=resize)


def test_it_is_what_the_published_programs_compute(graph, file):
    """Five pictures at once equal five runs of the unchanged graph; the bias of the classes is left out."""
    features, probabilities = opened(file)(drawn())
    expected, logits = run_as_published(graph, drawn())
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(probabilities, tf.nn.softmax(logits), rtol=1e-5)
    assert features.shape == (5, DIMENSION) and features.dtype == np.float32 and np.ptp(features) > 0.1
    assert probabilities.shape == (5, CLASSES)


def test_a_batch_normalisation_that_scales_keeps_its_gamma(tmp_path):
    content = frozen_graph(scale_after_normalization=True)
    (tmp_path / "graph.pb").write_bytes(content)
    features, _ = opened(tmp_path / "graph.pb")(drawn(2))
    np.testing.assert_allclose(features, run_as_published(content, drawn(2))[0], rtol=1e-5, atol=1e-6)


def test_clean_resizing_is_that_of_pillow_in_float(graph, file):
    """The unchanged graph receives pictures that Pillow has resized and that are clipped, as clean-fid does it."""
    resized = [
        np.stack(
            [
                np.asarray(Image.fromarray(picture[..., channel].astype(np.float32)).resize((299, 299), Image.BICUBIC))
                for channel in range(3)
            ],
            axis=-1,
        )
        for picture in drawn()
    ]
    assert min(picture.min() for picture in resized) < -5  # what clean-fid clips
    clean, _ = opened(file, resize="clean")(drawn())
    expected, _ = run_as_published(graph, [picture.clip(0, 255) for picture in resized])
    np.testing.assert_allclose(clean, expected, rtol=1e-4, atol=1e-5)
    legacy, _ = opened(file, resize="legacy")(drawn())
    assert np.abs(legacy - expected).max() > 0.01


def test_a_grey_picture_is_one_of_three_equal_channels(file):
    grey = drawn(3, (32, 32, 1))
    features, _ = opened(file, DataSpec((32, 32, 1), 10), "clean")(grey)
    colour, _ = opened(file, DataSpec((32, 32, 3), 10), "clean")(np.repeat(grey, 3, axis=-1))
    np.testing.assert_allclose(features, colour, rtol=1e-5, atol=1e-6)


def test_what_a_record_needs(file):
    features = opened(file, resize="clean")
    assert (features.name, features.resize, features.is_inception) == ("inception", "clean", True)
    assert (features.dimension, features.classes) == (DIMENSION, CLASSES)
    assert opened(file, DataSpec((299, 299, 3), 10), "clean").resize == "none"


def test_only_the_published_file_gives_published_fids(file, monkeypatch):
    assert opened(file).published is False
    run = tiny_run(eval_samples=10, eval_features="inception", inception=file)
    assert "eval/fid cannot be compared with them" in run.comparison.about_features()
    assert run.comparison.facts()["published"] is False
    monkeypatch.setattr(inception, "INCEPTION_BYTES", file.stat().st_size)
    assert opened(file).published is False
    monkeypatch.setattr(inception, "INCEPTION_MD5", hashlib.md5(file.read_bytes()).hexdigest())
    assert opened(file).published is True
    others = tiny_run(eval_samples=10, eval_features="pooled:pooled").comparison
    assert others.about_features() is None and others.facts()["published"] is None


def test_the_environment_names_the_file(file, monkeypatch):
    monkeypatch.setenv("HVDGAN_INCEPTION", str(file))
    assert opened(None).dimension == DIMENSION


def refused(path, spec=RGB):
    with pytest.raises(UserError) as caught:
        opened(path, spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_the_file_the_message_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv("HVDGAN_INCEPTION", raising=False)
    for path in (None, tmp_path / "gone.pb"):
        said = refused(path)
        assert "python -m hvdgan.features fetch" in said and "--inception FILE" in said and "HVDGAN_INCEPTION" in said
    assert "gone.pb" in said


def test_arrays_are_refused_by_name(file):
    for path in (file, None):
        said = refused(path, DataSpec((8, 8, 2), 10))
        assert "takes pictures of 1 or 3 channels" in said and "FILE.keras, a SavedModel or module:function" in said


def test_a_file_that_differs_from_its_recorded_checksum_is_refused(graph, tmp_path):
    path, record = tmp_path / "graph.pb", tmp_path / "graph.pb.sha256"
    path.write_bytes(graph)
    record.write_text(f"{hashlib.sha256(graph).hexdigest()}  graph.pb\n")
    assert opened(path).digest == hashlib.sha256(graph).hexdigest()
    for text in (f"{'0' * 64}  graph.pb\n", ""):
        record.write_text(text)
        assert "graph.pb.sha256 has another; run python -m hvdgan.features fetch" in refused(path)


def test_a_broken_or_foreign_graph_is_refused(file, graph, tmp_path):
    broken = tmp_path / "broken.pb"
    broken.write_bytes(graph[: len(graph) // 2])
    assert "is not a frozen graph, or is cut off" in refused(broken)
    broken.write_bytes(b"")
    assert "has no node ExpandDims" in refused(broken)
    nodes = Nodes()
    nodes.constant("ExpandDims", 1.0)
    broken.write_bytes(nodes.graph.SerializeToString())
    assert "has no node pool_3; expected classify_image_graph_def.pb" in refused(broken)
    nodes.add("pool_3", "NoSuchOperation", "ExpandDims")
    nodes.add("softmax/logits/MatMul", "MatMul", "pool_3", "ExpandDims")
    broken.write_bytes(nodes.graph.SerializeToString())
    assert "TensorFlow cannot import it" in refused(broken)
    nodes.graph.node[-1].input[1] = "pool_3"
    broken.write_bytes(nodes.graph.SerializeToString())
    assert "is not the graph of 2015-12-05" in refused(broken)
