"""Standing statistics of BatchNorm: those of generated batches replace the moving ones before samples are drawn.

Modules: inference.standing.
"""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.cli.errors import UserError
from hvdgan.inference.inputs import blank_inputs
from hvdgan.inference.standing import set_standing_statistics, standing_inputs
from hvdgan.inference.trained import load_trained
from hvdgan.recipe.drawing import Drawing, SampleRandom
from hvdgan.sample import main as sample
from hvdgan.train import main as train
from tiny import Tiny
from tiny_arrays import UNITS, volumes

STANDING = {"batches": 3, "batch_size": 4, "seed": 5}


class Twice(Tiny):
    """Samples are the mean of two calls."""

    def sample(self, nets, batch):
        return (nets.generator(batch.latents) + nets.generator(-2.0 * batch.latents)) / 2.0


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory):
    """Runs of a few steps."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        volumes("v.npz", count=24)
        tiny = "--image-size 8 --global-batch-size 16 --ema-decay 0.9 --steps 8 --learning-rate 0.02".split()
        for name, recipe, norm in (
            ("batch", "tiny:Tiny", "batch"),
            ("none", "tiny:Tiny", "none"),
            ("twice", "test_standing_statistics:Twice", "batch"),
        ):
            assert train(["--recipe", recipe, *tiny, "--norm", norm, "--run-dir", name]) == 0
        of_arrays = ["--recipe", "tiny_arrays:Volumes", "--data", "v.npz:ECAL", "--conditions", "energy,theta", *UNITS]
        words = "--axes DHW --global-batch-size 12 --steps 2 --run-dir volumes".split()
        assert train([*of_arrays, *words]) == 0
        words = "--recipe completion --data digits --nf 2 --global-batch-size 4 --max-steps 1 --run-dir completion"
        assert train(words.split()) == 0
    return folder


@pytest.fixture
def folder(trained_folder, monkeypatch):
    monkeypatch.chdir(trained_folder)
    return trained_folder


def values(trained):
    """All variables in memory, by their names in a checkpoint."""
    return {name: variable.numpy() for name, variable in trained.state.tensors().items()}


def stand(trained, weights="averaged", **changed):
    settings = {**STANDING, **changed}
    return set_standing_statistics(trained, weights, blank_inputs(trained.recipe.data), **settings)


def drawn(trained, weights="averaged"):
    """Eight samples."""
    inputs = blank_inputs(trained.recipe.data)
    data = {name: np.stack([each[name] for each in (next(inputs) for _ in range(8))]) for name in next(inputs)}
    tensors = {name: tf.constant(value) for name, value in data.items()}
    return Drawing(trained.recipe, trained.nets(weights))(tf.range(8, dtype=tf.int64), tensors).numpy()


def by_hand(saved, kind, batches, factors=(1.0,)):
    """Mean and variance of the first layer's outputs, averaged over batches of 4 latents and over calls."""
    kernel, bias = (saved[f"{kind}/generator/generator/dense/{name}"].astype(float) for name in ("kernel", "bias"))
    means, variances = [], []
    for number in range(batches):
        numbers = -1 - tf.range(4 * number, 4 * number + 4, dtype=tf.int64)
        latents = SampleRandom(5, numbers).scoped("draw").normal("latents", (8,)).numpy().astype(float)
        for factor in factors:
            outputs = factor * latents @ kernel + bias
            means.append(outputs.mean(axis=0))
            variances.append(outputs.var(axis=0))
    return np.mean(means, axis=0), np.mean(variances, axis=0)


@pytest.mark.parametrize(("run", "factors"), [("batch", (1.0,)), ("twice", (1.0, -2.0))])
@pytest.mark.parametrize(("weights", "kind"), [("averaged", "ema"), ("trained", "networks")])
@pytest.mark.parametrize("batches", [1, 3])
def test_the_statistics_are_the_means_over_the_batches_of_the_weights_in_use(
    folder, run, factors, weights, kind, batches
):
    """All else keeps its bits, those of the discriminator too, which sample() does not call."""
    trained = load_trained(folder / run)
    before = values(trained)
    assert stand(trained, weights, batches=batches) == ["generator"]
    after = values(trained)
    names = [f"{kind}/generator/generator/batch_normalization/moving_{name}" for name in ("mean", "variance")]
    assert {name for name in after if before[name].tobytes() != after[name].tobytes()} == set(names)
    for name, expected in zip(names, by_hand(before, kind, batches, factors), strict=True):
        np.testing.assert_allclose(after[name], expected, rtol=2e-5, atol=1e-6)
    momenta = {layer.momentum for layer in trained.state.networks["generator"].layers if hasattr(layer, "momentum")}
    assert momenta == {0.99}


@pytest.mark.parametrize("spoilt", [50.0, float("nan")])
def test_spoilt_moving_statistics_have_no_influence(folder, spoilt):
    good = load_trained(folder / "batch")
    stand(good)
    proper = drawn(good)
    trained = load_trained(folder / "batch")
    for name, variable in trained.state.tensors().items():
        if "moving" in name:
            variable.assign(tf.fill(variable.shape, spoilt))
    bad = drawn(trained)
    assert not np.abs(bad - proper).mean() < 0.1
    stand(trained)
    np.testing.assert_array_equal(drawn(trained), proper)


@pytest.mark.long
def test_the_samples_are_as_good_as_normalised_batches(folder):
    """Many batches give the statistics of the latents' distribution, whose outputs have mean 0 and variance 1."""
    trained = load_trained(folder / "batch")
    stand(trained, "trained", batches=200, batch_size=64)
    dense, norm = trained.state.networks["generator"].layers[:2]
    latents = SampleRandom(1, tf.range(2000, dtype=tf.int64)).normal("others", (8,))
    outputs = (norm(dense(latents), training=False) - norm.beta) / norm.gamma
    np.testing.assert_allclose(outputs.numpy().mean(axis=0), 0, atol=0.1)
    np.testing.assert_allclose(outputs.numpy().var(axis=0), 1, atol=0.15)


def digests(folder):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def test_the_command_draws_the_same_bits_twice_and_leaves_the_run_as_it_was(folder, tmp_path, capsys):
    before = digests(folder / "batch")
    flags = ["batch", "--standing-statistics", "3", "--batch-size", "4"]
    for name, num in (("a", "12"), ("b", "12"), ("fewer", "8")):
        assert sample([*flags, "--num", num, "--out", f"{tmp_path}/{name}.npy"]) == 0
    assert sample(["batch", "--num", "12", "--batch-size", "4", "--out", f"{tmp_path}/moving.npy"]) == 0
    a, b, fewer, moving = (np.load(tmp_path / f"{name}.npy") for name in ("a", "b", "fewer", "moving"))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a[:8], fewer)
    assert (a != moving).any()
    assert digests(folder / "batch") == before
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith("step 8; BatchNorm statistics of generator: 3 batches of 4")


def test_conditions_are_those_of_the_data_whatever_a_sample_is_drawn_for(folder, tmp_path):
    """Otherwise the statistics of one condition would take its effect out of the samples."""
    trained = load_trained(folder / "volumes")
    inputs = standing_inputs(trained, None, 0)
    energies = {float(next(inputs)["conditions"][0]) for _ in range(24)}
    assert len(energies) == 24 and max(energies) - min(energies) > 0.5
    flags = ["volumes", "--condition", "energy=50,theta=0.5", "--num", "4", "--out", str(tmp_path / "v.npy")]
    assert sample([*flags, "--standing-statistics", "2", "--batch-size", "12"]) == 0
    assert np.isfinite(np.load(tmp_path / "v.npy")).all()


def test_a_recipe_that_starts_from_data_has_statistics_of_its_data(folder, tmp_path):
    flags = "completion --num 4 --batch-size 4 --standing-statistics 2".split()
    assert sample([*flags, "--out", str(tmp_path / "c.png")]) == 0


def test_without_batch_norm_it_is_refused_in_one_line(folder, tmp_path, capsys):
    assert sample(["none", "--standing-statistics", "2", "--out", str(tmp_path / "grid.png")]) == 2
    error = capsys.readouterr().err
    assert error == (
        "hvdgan: --standing-statistics 2: sample() calls generator, without BatchNorm statistics; leave the flag out\n"
    )
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="sample.. calls generator, without BatchNorm"):
        stand(load_trained(folder / "none"))
