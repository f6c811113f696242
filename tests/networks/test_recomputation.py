"""Networks that compute their activations again give the same results, move their statistics once, and keep less.

Modules: networks.recomputation.gradient, networks.recomputation.calls, networks.recomputation.cuts,
networks.recomputation.choice.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from building import data_of, stage_step, tiny_run, values_of
from hvdgan.cli.errors import UserError
from hvdgan.networks.recomputation.cuts import parts_of
from hvdgan.networks.recomputation.gradient import recomputed
from saved import state, train
from small import long_but, settings, small, write_showers
from tiny import Exploding, Tiny, TinyOptions

WITH_OTHER_SUMS = {"stylegan2": 1e-3, "calo3d": 1e-4, "vae_gan": 1e-3}
"""largest differences, relative to the largest number of a variable: gradients are added in another order (those of
vae_gan depending on the names of its layers, and so on what the process has built before)"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("showers")
    write_showers(path / "showers.npz")
    return path


def trained(run, steps=2):
    """The variables after some steps of each stage."""
    for index in range(len(run.schedule.stages)):
        for number in range(steps):
            run.steps[index](number, number, data_of(run))
    return values_of(run)


def assert_equal(mine, others, tolerance=0.0):
    assert mine.keys() == others.keys()
    for name, value in others.items():
        largest = np.max(np.abs(value), initial=0.0)
        np.testing.assert_allclose(mine[name], value, rtol=0, atol=tolerance * largest, err_msg=name)


@pytest.mark.parametrize("name", long_but("dcgan", "downscale", "wgan_gp"))
def test_each_recipe_computes_the_same(folder, name):
    """Weights, slots, averages, BatchNorm's statistics, vectors of spectral normalisation; of most to the last bit."""
    recipe, options = small(name)
    plain, less = (tiny_run(recipe, options, remat=remat, **settings(name, folder)) for remat in (False, True))
    expected = trained(plain)
    assert_equal(trained(less), expected, WITH_OTHER_SUMS.get(name, 0.0))
    for mine, others in zip(less.steps, plain.steps, strict=True):
        counts = [sum(len(graph.get_operations()) for graph in step.graphs) for step in (mine, others)]
        assert counts[0] > 1.2 * counts[1]


@pytest.mark.long
@pytest.mark.parametrize(
    "more", [{"accumulate": 2}, {"precision": "mixed_float16", "accumulate": 2}, {"sync_batch_norm": True}]
)
def test_with_other_options(more):
    recipe, options = small("dcgan")
    runs = [tiny_run(recipe, options, remat=remat, image_size=32, **more) for remat in (False, True)]
    for run in runs:
        for scale in run.state.loss_scales.values():
            scale.value.assign(2.0**6)
    expected = trained(runs[0])
    assert_equal(trained(runs[1]), expected)


def test_an_interrupted_run_resumes_exactly_and_may_begin_without_it(tmp_path):
    assert train(tmp_path / "whole", "--remat") == 0
    assert train(tmp_path / "interrupted", "--remat", "--max-steps", "3") == 0
    assert train(tmp_path / "interrupted", "--remat") == 0
    assert state(tmp_path / "interrupted", 8) == state(tmp_path / "whole", 8)
    assert train(tmp_path / "changed", "--max-steps", "3") == 0
    assert train(tmp_path / "changed", "--remat") == 0


def test_statistics_stay_where_an_update_is_not_finite():
    runs = [tiny_run(Exploding, options=TinyOptions(norm="batch"), remat=remat) for remat in (False, True)]
    expected = trained(runs[0], steps=4)
    assert any("moving_mean" in name for name in expected)
    assert_equal(trained(runs[1], steps=4), expected)


def test_a_function_runs_again_when_its_gradient_is_computed():
    calls = []

    def cube(x):
        calls.append(x)
        return [x * x * x]

    @tf.function
    def slopes(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                (y,) = recomputed(cube, x)
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x)

    first, second = slopes(tf.constant(2.0))
    assert (float(first), float(second)) == (12.0, 12.0)
    assert len(calls) > 1


def test_an_input_that_a_function_does_not_read_has_no_gradient():
    @tf.function
    def gradients(x, y, number):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            (z,) = recomputed(lambda x, y, number: [x * tf.cast(number, tf.float32)], x, y, number)
        found = tape.gradient(z, [x, y])
        assert found[1] is None
        return found[0]

    assert float(gradients(tf.constant(2.0), tf.constant(3.0), tf.constant(4))) == 4.0


def residual(mask=False, shared=False):
    x = inputs = keras.Input((8, 8, 3))
    if mask:
        x = layers.Reshape((64, 3))(inputs)
        x = layers.Reshape((8, 8, 3))(layers.Masking()(x))
    conv = layers.Conv2D(16, 3, padding="same")
    for _ in range(4):
        skip = layers.Conv2D(16, 1)(x)
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same")(x)))
        x = layers.Add()([conv(x) if shared else x, skip])
    return keras.Model(inputs, layers.Flatten()(x))


def test_a_residual_network_is_cut_where_little_is_kept():
    network = residual()
    parts = parts_of(network)
    assert len(parts) >= 3
    made = {id(tensor) for tensor in network.inputs}
    for part in parts:
        assert all(id(tensor) in made for tensor in part.inputs)
        made |= {id(tensor) for tensor in part.outputs}
    assert all(id(tensor) in made for tensor in network.outputs)
    assert sum(len(part.outputs) for part in parts) <= len(parts) + 2


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(3)

    def call(self, inputs):
        return self.inner(inputs)


def test_networks_that_cannot_be_cut_are_left_whole():
    subclassed = Subclassed()
    subclassed(np.zeros((1, 2), np.float32))
    small = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    assert [parts_of(each) for each in (residual(mask=True), residual(shared=True), subclassed, small)] == [[]] * 4


class Uncut(Tiny):
    """Its networks are subclasses of keras.Model."""

    def networks(self):
        return {name: Around(network) for name, network in super().networks().items()}


class Around(keras.Model):
    def __init__(self, network):
        super().__init__(name=network.name)
        self.around = network
        self.built = True

    def call(self, inputs, training=False):
        return self.around(inputs, training=training)


def test_a_recipe_without_a_network_that_can_be_cut_is_refused():
    with pytest.raises(UserError, match="--remat: no network can be cut into parts"):
        tiny_run(Uncut, remat=True)


def test_the_step_takes_less_memory():
    """As TensorFlow's own allocator counts it; the least of several steps, since operations run at the same time."""
    recipe, _ = small("dcgan")
    most = []
    for remat in (False, True):
        run = tiny_run(recipe, recipe.Options(nf=16), image_size=64, global_batch_size=32, remat=remat)
        step, data = stage_step(run), data_of(run)
        step(0, 0, data)
        peaks = []
        for number in range(1, 7):
            before = tf.config.experimental.get_memory_info("CPU:0")["current"]
            tf.config.experimental.reset_memory_stats("CPU:0")
            step(number, number, data)
            peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before)
        most.append(min(peaks))
        assert 0.6 < run.estimates[0].peak.total / most[-1] < 1.4
    assert most[1] < 0.75 * most[0]
