"""The examples, from outside the package, and a program of examples/data that converts the pictures of npm packages."""

import importlib
import json
import re
import shutil
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import saved
from building import batch_of, data_of, stage_step, tiny_run
from hvdgan.data import open_source
from hvdgan.settings.config import Config
from launching import ROOT, run, train
from saved import records

SHORT = ["--stages", "warmup=2,both=3", "--log-every", "1", "--width", "16"]


def test_the_example_trains_on_two_ranks_from_its_own_folder(tmp_path):
    for name in ("my_gan", "my_stages"):
        shutil.copy(ROOT / "examples" / f"{name}.py", tmp_path)
    arguments = ["--recipe", "my_stages:MyStages", "--image-size", "16", *SHORT]
    train(tmp_path, *arguments, ranks=2)
    logged = records(tmp_path / "runs/my_stages.MyStages")
    assert [record["stage"] for record in logged] == ["warmup"] * 2 + ["both"] * 3
    assert ["fool/loss" in record for record in logged] == [False] * 2 + [True] * 3
    config = json.loads((tmp_path / "runs/my_stages.MyStages/config.json").read_text())
    assert (config["width"], config["warmup_steps"]) == (16, 100)


@pytest.mark.long
def test_the_example_with_classes_trains_and_hvdgan_sample_draws_its_classes_and_paths(tmp_path):
    shutil.copy(ROOT / "examples" / "my_conv_gan.py", tmp_path)
    short = "--image-size 8 --width 2 --max-steps 3 --log-every 1 --global-batch-size 8".split()
    train(tmp_path, "--recipe", "my_conv_gan:MyConvGAN", *short)
    path = tmp_path / "runs/my_conv_gan.MyConvGAN"
    logged = records(path)
    assert ["fool/loss" in record for record in logged] == [False, False, True]
    assert all(record["judge/penalty"] > 0 for record in logged)
    for words in ("--class 3", "--interpolate 1 2"):
        drawn = ["--samples", "4", "--out", f"{words.split()[0][2:]}.png"]
        done = run([sys.executable, "-m", "hvdgan.sample", str(path), *drawn, *words.split()], tmp_path, forked=True)
        assert done.returncode == 0, done.stderr


def test_the_example_with_pairs_trains_on_dicts_of_inputs_and_outputs(tmp_path):
    shutil.copy(ROOT / "examples" / "my_translator.py", tmp_path)
    short = "--image-size 8 --width 2 --max-steps 3 --log-every 1 --global-batch-size 8".split()
    train(tmp_path, "--recipe", "my_translator:MyTranslator", *short)
    path = tmp_path / "runs/my_translator.MyTranslator"
    logged = records(path)
    trained = [record for record in logged if "fool/l1" in record]
    assert len(trained) == 3 and all({"judge/loss", "fool/likelihood"} <= record.keys() for record in trained)
    assert any("eval/psnr" in record for record in logged)
    with Image.open(path / "samples" / "step-00000003.png") as grid:
        assert grid.size[0] > 3 * grid.size[1]  # input, image, expected error and wanted image side by side


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "recipe", "flags", "shape"),
    [
        (
            "my_table_gan",
            "MyTableGAN",
            "--pack 2 --values 0=standard;1=log1p+standard;2=none;3=none;4=none;5=none;6=none",
            (7,),
        ),
        ("my_audio_gan", "MyAudioGAN", "--axes WC --n-critic 1", (1024, 1)),
    ],
)
def test_the_examples_for_arrays_train_on_two_ranks_on_their_data_and_are_sampled(tmp_path, name, recipe, flags, shape):
    shutil.copy(ROOT / "examples" / f"{name}.py", tmp_path)
    for words in (["-m", name, "data.npy"], ["-m", "hvdgan.sample", "runs", "--samples", "4", "--out", "drawn.npy"]):
        if "hvdgan.sample" in words:
            short = "--width 2 --max-steps 3 --global-batch-size 8 --run-dir runs --data data.npy".split()
            train(tmp_path, "--recipe", f"{name}:{recipe}", *short, *flags.split(), ranks=2)
        done = run([sys.executable, *words], tmp_path, forked="hvdgan.sample" in words)
        assert done.returncode == 0, done.stderr
    drawn = np.load(tmp_path / "drawn.npy")
    assert drawn.shape == (4, *shape) and np.isfinite(drawn).all()
    if name == "my_table_gan":
        assert (drawn[:, 2:5].sum(axis=1) == 1).all() and drawn[:, 1].min() > -1


FURTHER = [pytest.param(name, marks=pytest.mark.long) for name in ("LearntWeights", "BYOL", "MeanTeacher")]


@pytest.mark.parametrize("name", ["Codebook", *FURTHER])
def test_the_examples_whose_losses_keep_something_resume_to_the_same_bits(tmp_path, monkeypatch, name):
    """tests/parallel/test_reduction.py trains them on two ranks."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    flags = f"--recipe my_losses:{name} --image-size 8 --global-batch-size 8 --width 4 --steps 6".split()
    for folder, words in (("whole", []), ("parts", ["--max-steps", "3"]), ("parts", [])):
        assert saved.train(tmp_path / folder, *words, flags=flags) == 0
    assert saved.state(tmp_path / "whole", 6) == saved.state(tmp_path / "parts", 6)
    if name == "LearntWeights":
        assert saved.tensors(tmp_path / "whole", 6)["networks/weights/weights/log_variance"].all()


def test_the_codebook_is_an_average_over_time_of_shares_and_sums(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    examples = importlib.import_module("my_losses")
    run = tiny_run(examples.Codebook, examples.MyOptions(width=4))
    features = run.state.nets().encoder(batch_of(run, "fit").images).numpy()
    state = run.state.declared_state.shared()
    codes, shares = (state[f"state/{name}"].numpy() for name in ("codes", "shares"))
    chosen = np.eye(examples.CODES)[np.square(features[:, None] - codes).sum(axis=2).argmin(axis=1)]
    stage_step(run)(0, 0, data_of(run))
    wanted = 0.9 * shares + 0.1 * chosen.mean(axis=0)
    np.testing.assert_allclose(state["state/shares"], wanted, atol=1e-6)
    sums = 0.9 * shares[:, None] * codes + 0.1 / 16 * chosen.T @ features
    np.testing.assert_allclose(state["state/codes"], sums / wanted[:, None], atol=1e-5)


@pytest.fixture
def tokenizer(monkeypatch):
    """A run of my_tokenizer.py, and its batch of pictures."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    examples = importlib.import_module("my_tokenizer")
    run = tiny_run(examples.MyTokenizer, examples.MyTokenizerOptions(width=8, codes=8, code_size=4))
    return run, batch_of(run, "rebuild").images


def codes_of(run):
    state = run.state.declared_state.shared()
    return state["state/codes"].numpy(), state["state/use"].numpy()


@pytest.mark.long
def test_codes_that_no_feature_uses_become_features_and_others_are_averages_over_time(tokenizer):
    run, images = tokenizer
    for step in range(2):
        features = run.state.nets().encoder(images).numpy().reshape(-1, 4)
        codes, use = codes_of(run)
        chosen = np.eye(8)[np.square(features[:, None] - codes).sum(axis=2).argmin(axis=1)]
        metrics, _ = stage_step(run)(step, step, data_of(run))
        found, new = codes_of(run)
        assert metrics["rebuild/used"] == chosen.any(axis=0).mean()
        if step == 0:  # the codes are zeros, which none has used
            places = [np.abs(features - code).max(axis=1).argmin() for code in found]
            np.testing.assert_allclose(found, features[places], rtol=1e-5, atol=1e-6)
            assert len(set(places)) == 8 and new == pytest.approx([1 / 8] * 8)
    wanted = 0.99 * use + 0.01 * chosen.mean(axis=0)
    np.testing.assert_allclose(new, wanted, rtol=1e-5, atol=1e-6)
    sums = 0.99 * use[:, None] * codes + 0.01 * chosen.T @ features / 64
    np.testing.assert_allclose(found, sums / wanted[:, None], rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("learns", [False, True])
def test_features_get_the_gradient_of_their_codes_and_are_pulled_to_them(tokenizer, learns):
    recipe, batch = type(tokenizer[0].recipe), batch_of(tokenizer[0], "rebuild")
    recipe = recipe(recipe.Options(codes=8, code_size=4, learn_codes=learns), tokenizer[0].recipe.data)
    random, total, learnt = np.random.default_rng(0), 16 * 2 * 2 * 4, tf.zeros((8, 4))
    features, downstream = (tf.constant(random.normal(size=(16, 2, 2, 4)), tf.float32) for _ in range(2))
    batch.state = SimpleNamespace(codes=tf.constant(random.normal(size=(8, 4)), tf.float32), use=tf.fill(8, 1 / 8))
    batch.mean, batch.gather = (lambda x: tf.reduce_mean(x, 0)), tf.identity
    nets = SimpleNamespace(encoder=lambda _: features, codes=lambda _: learnt)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([features, learnt])
        given, loss, new, _ = recipe.quantised(nets, batch)
        later = tf.reduce_sum(given * downstream)
    np.testing.assert_array_equal(tape.gradient(later, features), downstream)
    apart = features - given  # the codes, as the decoder sees them
    np.testing.assert_allclose(tape.gradient(loss, features), 0.25 * 2 * apart / total, atol=1e-7)
    assert tape.gradient(later, learnt) is None and (new["codes"] == batch.state.codes).numpy().all() == learns
    if learns:
        sums = -tf.reduce_sum(2 * apart / total, (0, 1, 2))
        np.testing.assert_allclose(tf.reduce_sum(tape.gradient(loss, learnt), 0), sums, atol=1e-6)


@pytest.mark.long
def test_the_weight_of_the_discriminator_is_the_ratio_of_the_gradients_norms_at_the_last_kernel(tokenizer):
    run, images = tokenizer
    stage_step(run)(0, 0, data_of(run))
    nets, (codes, _) = run.state.nets(), codes_of(run)
    features = nets.encoder(images)
    tokens = np.square(features[..., None, :] - codes).sum(axis=4).argmin(axis=3)
    given, decoder = codes[tokens], run.state.networks["decoder"]
    weights = [tf.identity(variable) for variable in decoder.variables]
    metrics, _ = stage_step(run, 1)(1, 0, data_of(run))
    for variable, value in zip(decoder.variables, weights, strict=True):
        variable.assign(value)
    with tf.GradientTape(persistent=True) as tape:
        made = decoder(given)
        features = zip(nets.features(images), nets.features(made), strict=True)
        error = tf.add_n([tf.reduce_mean(tf.abs(made - images)), *(tf.reduce_mean((a - b) ** 2) for a, b in features)])
        fool = -tf.reduce_mean(nets.discriminator(made))
    first, second = (np.linalg.norm(tape.gradient(each, decoder.layers[-1].kernel)) for each in (error, fool))
    assert float(metrics["rebuild/weight"]) == pytest.approx(0.2 * first / (second + 1e-4), rel=1e-4)


@pytest.mark.long
def test_the_example_in_python_trains_draws_and_resumes(tmp_path):
    shutil.copy(ROOT / "examples" / "my_gan.py", tmp_path)
    text = (ROOT / "examples" / "in_python.py").read_text()
    (tmp_path / "in_python.py").write_text(re.sub(r"steps=1([02])00", r"steps=3\1, log_every=1", text))
    done = run([sys.executable, "in_python.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["(16, 16, 16, 1) uint8", "32"]


@pytest.mark.long
def test_the_example_with_optuna_prunes_trials_and_the_report_compares_them(tmp_path):
    pytest.importorskip("optuna")
    text = (ROOT / "examples" / "optuna_sweep.py").read_text()
    # The first trial ends; later ones are pruned at their first report, and would take ages otherwise.
    text = text.replace('"steps": 400, "eval_samples": 512, "eval_every": 100', '"eval_samples": 32, "eval_every": 2')
    text = text.replace("**SETTINGS,", "**SETTINGS, steps=4 if trial.number == 0 else 100_000, checkpoint_every=0,")
    text = text.replace(
        "optuna.pruners.MedianPruner(n_startup_trials=3)", "optuna.pruners.ThresholdPruner(upper=0, n_warmup_steps=5)"
    )
    (tmp_path / "sweep.py").write_text(text.replace("n_trials=10", "n_trials=2").replace('"nf": 16', '"nf": 2'))
    done = run([sys.executable, "sweep.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Trial 1 pruned" in done.stderr and "Optuna prunes this trial" in done.stderr
    assert "'learning_rate'" in done.stdout
    done = run([sys.executable, "-m", "hvdgan.report", "runs/optuna", "--out", "sweep.html"], tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "sweep.html").read_text()
    assert all(word in page for word in ("trial-0", "trial-1", "--learning-rate", "eval/sliced_wasserstein"))


SCRIPT = ROOT / "examples" / "data" / "npm_pictures.py"
DIGITS = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
LABELS = np.array([7, 2, 1, 0, 9], np.uint8)
PARTS = {"train": slice(3), "t10k": slice(3, 5)}


def mnist_package(folder):
    data = folder / "data"
    data.mkdir(parents=True)
    for prefix, num in (("train", 3), ("t10k", 2)):
        some, heads = (
            PARTS[prefix],
            (struct.pack(">4B3I", 0, 0, 8, 3, num, 28, 28), struct.pack(">4BI", 0, 0, 8, 1, num)),
        )
        (data / f"{prefix}-images-idx3-ubyte").write_bytes(heads[0] + DIGITS[some].tobytes())
        (data / f"{prefix}-labels-idx1-ubyte").write_bytes(heads[1] + LABELS[some].tobytes())
    return folder


def test_digits_get_a_black_border_and_keep_pixels_and_labels(tmp_path):
    package = mnist_package(tmp_path / "package")
    done = run([sys.executable, SCRIPT, "mnist", "--package", package, "--out", "out"], tmp_path)
    assert done.returncode == 0, done.stderr
    for part, some in (("train", PARTS["train"]), ("test", PARTS["t10k"])):
        source = open_source(Config(data=str(tmp_path / "out" / f"{part}.npz")))
        pictures = source.fetch_batch(np.arange(len(source)))["images"]
        assert pictures.shape == (len(LABELS[some]), 32, 32, 1) and pictures.dtype == np.uint8
        np.testing.assert_array_equal(pictures[:, 2:-2, 2:-2, 0], DIGITS[some])
        pictures[:, 2:-2, 2:-2] = 0
        assert not pictures.any()
        np.testing.assert_array_equal(source.labels, LABELS[some])


@pytest.mark.long
def test_the_features_of_digits_are_those_of_a_classifier(tmp_path):
    done = run([sys.executable, SCRIPT.with_name("digits_features.py"), "--epochs", "2"], tmp_path)
    assert done.returncode == 0 and float(re.search(r"accuracy (\S+)", done.stdout)[1]) > 0.5, done.stderr
