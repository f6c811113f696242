"""Standing statistics of BatchNorm: those of generated batches replace the moving ones before samples are drawn.

Modules: inference.standing.
"""

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.inference import standing
from hvdgan.inference.standing import set_standing_statistics
from hvdgan.inference.trained import load_trained
from hvdgan.recipe.drawing import SampleRandom
from hvdgan.sample import main as sample
from hvdgan.train import main as train
from tiny import Tiny
from tiny_arrays import UNITS, volumes


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
            ("twice", "test_standing_statistics:Twice", "batch"),
        ):
            assert train(["--recipe", recipe, *tiny, "--norm", norm, "--run-dir", name]) == 0
        of_arrays = ["--recipe", "tiny_arrays:Volumes", "--data", "v.npz:ECAL", "--conditions", "energy,theta", *UNITS]
        words = "--axes DHW --global-batch-size 12 --steps 2 --run-dir volumes".split()
        assert train([*of_arrays, *words]) == 0
    return folder


@pytest.fixture
def folder(trained_folder, monkeypatch):
    monkeypatch.chdir(trained_folder)
    return trained_folder


def by_hand(saved, kind, batches, factors):
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


@pytest.mark.parametrize(
    ("run", "factors", "weights", "kind"),
    [("batch", (1.0,), "averaged", "ema"), ("twice", (1.0, -2.0), "trained", "networks")],
)
def test_the_statistics_are_the_means_over_the_batches_of_the_weights_in_use(folder, run, factors, weights, kind):
    """Whatever the moving statistics were. All else keeps its bits, those of the discriminator too."""
    trained = load_trained(folder / run)
    tensors = trained.state.tensors()
    for name, variable in tensors.items():
        if "moving" in name:
            variable.assign(variable + 50.0)
    before = {name: variable.numpy() for name, variable in tensors.items()}
    assert set_standing_statistics(trained, weights, batches=3, batch_size=4, seed=5) == ["generator"]
    after = {name: variable.numpy() for name, variable in tensors.items()}
    names = [f"{kind}/generator/generator/batch_normalization/moving_{name}" for name in ("mean", "variance")]
    assert {name for name in after if before[name].tobytes() != after[name].tobytes()} == set(names)
    for name, expected in zip(names, by_hand(before, kind, 3, factors), strict=True):
        np.testing.assert_allclose(after[name], expected, rtol=2e-5, atol=1e-6)
    momenta = {layer.momentum for layer in trained.state.networks["generator"].layers if hasattr(layer, "momentum")}
    assert momenta == {0.99}


def test_the_command_draws_the_same_bits_twice_and_leaves_the_run_as_it_was(folder, tmp_path, capsys):
    before = {path: path.read_bytes() for path in (folder / "batch").rglob("*") if path.is_file()}
    flags = ["batch", "--standing-statistics", "3", "--batch-size", "4"]
    for name, num in (("a", "12"), ("b", "12"), ("fewer", "8")):
        assert sample([*flags, "--samples", num, "--out", f"{tmp_path}/{name}.npy"]) == 0
    assert sample(["batch", "--samples", "12", "--batch-size", "4", "--out", f"{tmp_path}/moving.npy"]) == 0
    a, b, fewer, moving = (np.load(tmp_path / f"{name}.npy") for name in ("a", "b", "fewer", "moving"))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a[:8], fewer)
    assert (a != moving).any()
    assert {path: path.read_bytes() for path in (folder / "batch").rglob("*") if path.is_file()} == before
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith("step 8; BatchNorm statistics of generator: 3 batches of 4")


def test_conditions_are_those_of_the_data_whatever_a_sample_is_drawn_for(folder, tmp_path, monkeypatch):
    """Otherwise the statistics of one condition would take its effect out of the samples."""
    energies, inputs_of = [], standing.data_inputs

    def noted(*arguments):
        for one in inputs_of(*arguments):
            energies.append(float(one["conditions"][0]))
            yield one

    monkeypatch.setattr(standing, "data_inputs", noted)
    flags = ["volumes", "--condition", "energy=50,theta=0.5", "--samples", "4", "--out", str(tmp_path / "v.npy")]
    assert sample([*flags, "--standing-statistics", "2", "--batch-size", "12"]) == 0
    assert len(set(energies)) == 24 and max(energies) - min(energies) > 0.5
