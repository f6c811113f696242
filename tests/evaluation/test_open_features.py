"""What --eval-features names: Keras files, SavedModels, functions, and what of them is refused.

Modules: evaluation.features, evaluation.feature_networks.
"""

import hashlib
import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from hvdgan.cli.errors import RunError, UserError
from hvdgan.evaluation.features import open_features
from hvdgan.recipe import DataSpec
from launching import ROOT

GREY = DataSpec((8, 8, 1), 10)
FIELDS = DataSpec((6, 6, 2), 10)


def opened(text, spec=GREY, resize="clean"):
    return open_features(str(text), spec, inception=None, resize=resize)


def refused(text, spec=GREY):
    with pytest.raises(UserError) as caught:
        opened(text, spec)
    said = str(caught.value)
    assert said.startswith(f"--eval-features {text}") and "\n" not in said
    return said


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


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module `mine` into the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])

    def write(text):
        sys.modules.pop("mine", None)
        (tmp_path / "mine.py").write_text(text)

    yield write
    sys.modules.pop("mine", None)


def test_none_is_no_features():
    assert opened("none") is None


def test_pictures_reach_a_network_as_float32_from_minus_1_to_1(tmp_path):
    path = saved(tmp_path, network())
    features = opened(path)
    numbers, probabilities = features(pictures())
    np.testing.assert_allclose(numbers, pictures().reshape(3, 64) / 127.5 - 1, atol=1e-6)
    assert numbers.dtype == np.float32 and probabilities is None
    assert (features.name, features.resize, features.is_inception) == (str(path), "none", False)
    assert (features.dimension, features.classes) == (64, 0)
    assert features.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_arrays_reach_a_network_as_they_are(tmp_path):
    fields = np.random.default_rng(0).normal(0, 9, (4, 6, 6, 2)).astype(np.float32)
    numbers, _ = opened(saved(tmp_path, network((6, 6, 2))), FIELDS)(fields)
    np.testing.assert_array_equal(numbers, fields.reshape(4, 72))


@pytest.mark.parametrize(
    ("outputs", "softmax"),
    [
        (lambda flat, classes: [flat, layers.Softmax()(classes)], True),
        (lambda flat, classes: {"features": flat, "probabilities": layers.Softmax()(classes)}, True),
        (lambda flat, classes: {"logits": classes, "features": flat}, True),
        (lambda flat, classes: {"anything": flat}, False),
    ],
)
@pytest.mark.parametrize("form", ["keras", "savedmodel"])
def test_class_probabilities(tmp_path, outputs, softmax, form):
    model = network(outputs=outputs)
    if form == "keras":
        path = saved(tmp_path, model)
    else:
        path = tmp_path / "net"
        model.export(path, verbose=False)
    features = opened(path)
    numbers, probabilities = features(pictures())
    np.testing.assert_allclose(numbers, pictures().reshape(3, 64) / 127.5 - 1, atol=1e-6)
    assert features.classes == (3 if softmax else 0)
    if softmax:
        dense = next(layer for layer in model.layers if isinstance(layer, layers.Dense))
        np.testing.assert_allclose(probabilities, tf.nn.softmax(dense(numbers)), atol=1e-5)


def test_the_digest_of_a_saved_model_is_that_of_all_its_files(tmp_path):
    network().export(tmp_path / "net", verbose=False)
    first = opened(tmp_path / "net").digest
    assert opened(tmp_path / "net").digest == first
    (tmp_path / "net" / "assets" / "more").write_text("x")
    assert opened(tmp_path / "net").digest != first


def test_pictures_are_resized_to_a_network_of_fixed_size_only(tmp_path):
    large = DataSpec((16, 24, 1), 10)
    fixed, free = saved(tmp_path, network()), saved(tmp_path, network((None, None, 1)), "free.keras")
    results = {how: opened(fixed, large, how) for how in ("clean", "legacy")}
    assert {how: features.resize for how, features in results.items()} == {"clean": "clean", "legacy": "legacy"}
    given = pictures(shape=large.shape)
    clean, legacy = (features(given)[0] for features in results.values())
    np.testing.assert_allclose(
        clean, tf.reshape(tf.image.resize(given, (8, 8), "bicubic", antialias=True), (3, 64)) / 127.5 - 1, atol=1e-5
    )
    np.testing.assert_allclose(legacy, given[:, ::2, ::3].reshape(3, 64) / 127.5 - 1, atol=1e-5)
    unchanged = opened(free, large)
    assert unchanged.resize == "none"
    np.testing.assert_allclose(unchanged(given)[0], given.mean(axis=(1, 2)) / 127.5 - 1, atol=1e-5)


def test_grey_becomes_rgb_but_rgb_is_refused_by_a_grey_network(tmp_path):
    numbers, _ = opened(saved(tmp_path, network((8, 8, 3))))(pictures())
    np.testing.assert_allclose(numbers, np.repeat(pictures(), 3, axis=-1).reshape(3, 192) / 127.5 - 1, atol=1e-6)
    said = refused(saved(tmp_path, network(), "grey.keras"), DataSpec((8, 8, 3), 10))
    assert "takes samples of shape (8, 8, 1), and the data have pictures (8, 8, 3); RGB is not made grey" in said


def test_a_batch_size_is_traced_once(module, tmp_path):
    module("traces = []\ndef f(x):\n    traces.append(tuple(x.shape))\n    return x[:, 0, :, 0]\n")
    features = opened("mine:f")
    for _ in range(3):
        features(pictures(4))
    assert sys.modules["mine"].traces == [(2, 8, 8, 1), (4, 8, 8, 1)]


def test_a_function_gets_a_tensor_and_may_return_several_axes(module, tmp_path):
    module("import tensorflow as tf\ndef f(x):\n    return x * 2, tf.nn.softmax(x[:, 0, :3, 0])\n")
    features = opened("mine:f")
    numbers, probabilities = features(pictures())
    np.testing.assert_allclose(numbers, (pictures().reshape(3, 64) / 127.5 - 1) * 2, atol=1e-6)
    assert (features.dimension, features.classes, probabilities.shape) == (64, 3, (3, 3))
    assert features.resize == "none"


def test_the_digest_of_a_function_is_that_of_its_file_its_name_and_its_features(module):
    found = []
    for code in (
        "import keras\nscale = 1.0\ndef f(x):\n    return x[:, 0] * scale\ndef g(x):\n    return x[:, 0] * scale\n",
        "import keras\nscale = 1.0 \ndef f(x):\n    return x[:, 0] * scale\n",
    ):
        module(code)
        found += [opened("mine:f").digest, opened("mine:f").digest]
    sys.modules["mine"].scale = 1.01  # as weights of another file
    found.append(opened("mine:f").digest)
    module(code + "g = f\n")
    found += [opened("mine:f").digest, opened("mine:g").digest]
    assert found[0] == found[1] and found[2] == found[3]
    assert len(set(found)) == 5


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 3", "returns () for 2 samples"),
        ("return None", "returns None; expected features (B, d)"),
        ("return 'a word'", "returns 'a word'; expected features"),
        ("return x, x, x", "returns a tuple of 3; expected features"),
        ("return {'a': x, 'b': x}", "returns a dict of 2 (a, b); expected features"),
        ("return x[:1, 0, 0]", "returns (1, 1) for 2 samples"),
        ("return x[:, 0, 0, 0]", "returns (2,) for 2 samples"),
        ("return x[:, :0]", "returns (2, 0, 8, 1) for 2 samples"),
        ("return x, x[:, 0, :, 0]", "the second output is not class probabilities"),
        ("return x.numpy()", "(mine.py, line 2): f fails: AttributeError"),
        ("return undefined", "(mine.py, line 2): f fails: NameError"),
    ],
)
def test_what_a_function_must_not_return(module, body, said):
    module(f"def f(x):\n    {body}\n")
    assert said in refused("mine:f")


def test_modules_and_functions_that_are_not_there(module):
    module("def features(x):\n    return x\nNUMBER = 1\n")
    assert "there is no module gone" in refused("gone:f")
    assert "feature in mine is not a function" in refused("mine:feature")
    assert "did you mean features?" in refused("mine:feature")
    assert "NUMBER in mine is not a function" in refused("mine:NUMBER")
    module("import gone_too\n")
    assert "(mine.py, line 1): its import fails: ModuleNotFoundError" in refused("mine:f")


def test_features_that_are_not_finite_stop_the_run(module):
    module("import tensorflow as tf\ndef f(x):\n    return tf.math.log(x[:, 0, :, 0] + 1)\n")
    features = opened("mine:f")
    given = np.full((5, 8, 8, 1), 200, np.uint8)
    features(given)
    given[3:, 0, 2] = 0
    with pytest.raises(RunError, match="--eval-features mine:f: the features of 2 of 5 samples are not finite"):
        features(given)


def test_samples_of_another_kind_are_not_taken_for_pictures(tmp_path):
    features = opened(saved(tmp_path, network()))
    for wrong in (pictures().astype(np.float32), pictures(shape=(8, 9, 1))):
        with pytest.raises(ValueError, match="expected uint8"):
            features(wrong)


def test_the_function_of_the_page(module):
    """The code in docs/evaluation.md, on a picture whose only frequency is known."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "evaluation.md").read_text(), re.DOTALL)
    module(code)
    waves = 127.5 + 127.5 * np.cos(2 * np.pi * 3 * np.arange(32) / 32)
    given = np.broadcast_to(np.rint(waves).astype(np.uint8)[:, None], (1, 32, 32, 3))
    amplitudes = opened("mine:spectrum", DataSpec((32, 32, 3), 10))(given)[0].reshape(8, 8)
    assert np.unravel_index(amplitudes.argmax(), (8, 8)) == (0, 3)


def test_files_that_are_no_networks(tmp_path):
    assert "there is no such file" in refused(tmp_path / "gone.keras")
    (tmp_path / "text.keras").write_text("nothing")
    assert "is not a file that Keras 3 has saved" in refused(tmp_path / "text.keras")
    whole = saved(tmp_path, network()).read_bytes()
    (tmp_path / "cut.keras").write_bytes(whole[: len(whole) // 2])
    assert "or is cut off" in refused(tmp_path / "cut.keras")
    assert "has no saved_model.pb" in refused(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"nothing")
    assert "TensorFlow cannot load it" in refused(tmp_path)
    for text in ("inceptionv3", "net.h5", "some/folder", "a b:c"):
        assert "expected none, inception, recipe, FILE.keras, the folder of a SavedModel" in refused(text)


def test_code_in_a_keras_file_is_not_run(tmp_path):
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Lambda(lambda x: x * 2), layers.Flatten()])
    said = refused(saved(tmp_path, model))
    assert "Lambda" in said and "as a SavedModel, with network.export(FOLDER)" in said
    model.export(tmp_path / "net", verbose=False)
    numbers, _ = opened(tmp_path / "net")(pictures())
    np.testing.assert_allclose(numbers, (pictures().reshape(3, 64) / 127.5 - 1) * 2, atol=1e-6)


def test_opening_does_not_change_networks_that_are_built_later(tmp_path):
    """Neither their initial weights nor the names that their tensors have in checkpoints."""
    path = saved(tmp_path, network(outputs=lambda flat, classes: layers.Dropout(0.5)(classes)))
    built = []
    for opens in (False, True):
        keras.utils.clear_session()
        keras.utils.set_random_seed(3)
        if opens:
            opened(path)
        later = keras.Sequential([keras.Input((4,)), layers.Dense(2), layers.Dense(3)])
        built.append({variable.path: variable.numpy() for variable in later.variables})
    assert built[0].keys() == built[1].keys()
    for name, value in built[0].items():
        np.testing.assert_array_equal(built[1][name], value)


def test_networks_that_do_not_fit(tmp_path):
    assert "takes samples of shape (8, 8, 1), and the data have (6, 6, 2)" in refused(
        saved(tmp_path, network()), FIELDS
    )
    assert "takes samples of shape (64), and the data have pictures (8, 8, 1)" in refused(
        saved(tmp_path, keras.Sequential([keras.Input((64,)), layers.Dense(2)]), "flat.keras")
    )
    one, other = keras.Input((8, 8, 1)), keras.Input((8, 8, 1))
    assert "has 2 inputs" in refused(saved(tmp_path, keras.Model([one, other], one + other), "two.keras"))
    assert "its input is int32" in refused(saved(tmp_path, network(dtype="int32"), "whole.keras"))
    module = tf.Module()
    tf.saved_model.save(module, tmp_path / "empty")
    assert "has no signature serving_default; it has none" in refused(tmp_path / "empty")
