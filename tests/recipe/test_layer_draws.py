"""What layers draw is a function of the step and of the sample, never of the rank, and Keras' generators stay."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from building import data_of, stage_step, tiny_run, trained
from hvdgan.errors import UserError
from hvdgan.inference.serving import Serving
from hvdgan.recipe.draws import Random
from hvdgan.recipe.layer_draws import LayerDraws
from hvdgan.recipe.nets import Nets, SharedForward
from hvdgan.recipe.sampling import Drawing, draw_batches
from tiny import Tiny

ROWS, SIZE = 8, 6
PICTURES = np.random.default_rng(0).uniform(-1, 1, (ROWS, SIZE, SIZE, 2)).astype(np.float32)


class Sampling(layers.Layer):
    """The noise of a variational autoencoder, as keras.io has it."""

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, x):
        return x + keras.random.normal(keras.ops.shape(x), seed=self.seed_generator)


class NoisyKernel(layers.Dense):
    """Noise that all samples share: its shape begins with as many rows as a batch has."""

    def call(self, x):
        noise = keras.random.normal(self.kernel.shape) + tf.random.truncated_normal(self.kernel.shape)
        return super().call(x) + keras.ops.matmul(x, noise)


class OwnSeed(layers.Layer):
    """Seeds that the layer takes from a generator, and changes, for functions of TensorFlow."""

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1)

    def call(self, x):
        seed = tf.cast(self.seed_generator.next(), tf.int32)
        x = tf.nn.experimental.stateless_dropout(x, 0.5, seed=seed)
        noise = tf.cond(
            tf.reduce_sum(x) > -1e9,
            lambda: tf.random.stateless_normal(tf.shape(x), seed=seed + 12),
            lambda: tf.zeros_like(x),
        )
        return x + noise


def drawn(draw):
    """A layer that adds what a function of TensorFlow or Keras draws for a tensor."""
    return layers.Lambda(lambda x: x + tf.cast(draw(x), x.dtype))


def in_order(function):
    """A layer that needs sequences, between reshapes."""
    sequence = layers.Reshape((SIZE, 2 * SIZE))
    return lambda x: layers.Reshape((SIZE, SIZE, -1))(layers.Dense(2 * SIZE)(function(sequence(x))))


LAYERS = {
    "Dropout": lambda: layers.Dropout(0.4),
    "Dropout of channels": lambda: layers.Dropout(0.4, noise_shape=(None, 1, 1, 2)),
    "Dropout of all samples": lambda: layers.Dropout(0.4, noise_shape=(1, SIZE, SIZE, 1)),
    "SpatialDropout": lambda: layers.SpatialDropout2D(0.4),
    "GaussianNoise": lambda: layers.GaussianNoise(0.3),
    "GaussianDropout": lambda: layers.GaussianDropout(0.3),
    "AlphaDropout": lambda: layers.AlphaDropout(0.3),
    "RandomFlip": lambda: layers.RandomFlip(),
    "RandomRotation": lambda: layers.RandomRotation(0.2),
    "RandomErasing": lambda: layers.RandomErasing(1.0, value_range=(-1.0, 1.0)),
    "RandomCrop": lambda: keras.Sequential([layers.RandomCrop(4, 4), layers.ZeroPadding2D()]),
    "LSTM": lambda: in_order(layers.LSTM(5, return_sequences=True, dropout=0.3, recurrent_dropout=0.2)),
    "GRU": lambda: in_order(layers.Bidirectional(layers.GRU(5, return_sequences=True, dropout=0.3))),
    "MultiHeadAttention": lambda: in_order(lambda x: layers.MultiHeadAttention(2, 4, dropout=0.3)(x, x)),
    "TimeDistributed": lambda: in_order(layers.TimeDistributed(layers.Dropout(0.4))),
    "Sampling": lambda: Sampling(),
    "OwnSeed": lambda: OwnSeed(),
    "NoisyKernel": lambda: keras.Sequential(
        [
            layers.Reshape((SIZE * SIZE, 2)),
            layers.Permute((2, 1)),
            layers.Dense(ROWS),
            NoisyKernel(SIZE * SIZE),
            layers.Reshape((SIZE, SIZE, 2)),
        ]
    ),
    "a folded axis": lambda: layers.Lambda(
        lambda x: tf.reshape(keras.random.dropout(tf.reshape(x, (-1, SIZE, 2)), 0.4), tf.shape(x))
    ),
    "tf.random": lambda: drawn(
        lambda x: tf.random.normal(tf.shape(x)) + tf.random.uniform([tf.shape(x)[0], 1, 1, 1]) + tf.random.uniform([])
    ),
    "tf.nn.dropout": lambda: layers.Lambda(lambda x: tf.nn.dropout(x, 0.3, noise_shape=[tf.shape(x)[0], 1, SIZE, 2])),
    "randint": lambda: drawn(lambda x: keras.random.randint(keras.ops.shape(x), 2, 5)),
    "categorical": lambda: drawn(lambda x: keras.random.categorical(x[:, 0, 0], 1)[:, None, None]),
}
QUICK = ("Dropout of channels", "OwnSeed", "NoisyKernel", "a folded axis", "tf.random", "categorical")
SHARED = ("Dropout of all samples", "NoisyKernel", "RandomCrop")
"""those that give all samples the same numbers"""


def in_a_loss(network, **settings):
    """A function of samples, the place of the first, their number and the step, that calls the network in a loss."""

    @tf.function(autograph=False)
    def call(x, first, step, count):
        random = Random(1, step, first, count)
        with LayerDraws(random, "update", **settings).in_use():
            return Nets({"critic": network}, training=True).critic(x)

    def computed(x, first, count, step=3):
        return call(x, tf.constant(first), tf.constant(step, tf.int64), count).numpy()

    return computed


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in LAYERS]
)
def test_a_part_of_a_batch_has_the_numbers_of_the_whole_batch(name):
    x = keras.Input(PICTURES.shape[1:])
    network = keras.Model(x, LAYERS[name]()(x))
    before, compute = [variable.numpy() for variable in network.variables], in_a_loss(network)
    whole = compute(PICTURES, 0, ROWS)
    parts = [compute(PICTURES[n : n + 4], n, 4) for n in (0, 4)]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=2e-5)
    joined = compute(np.concatenate([PICTURES, PICTURES[::-1]]), 0, ROWS)
    part = compute(np.concatenate([PICTURES[4:], PICTURES[:4][::-1]]), 4, 4)
    np.testing.assert_allclose(part, np.concatenate([joined[4:8], joined[12:]]), atol=2e-5)
    np.testing.assert_array_equal(compute(PICTURES, 0, ROWS), whole)
    assert np.abs(compute(PICTURES, 0, ROWS, step=5) - whole).max() > 0.01
    equal = compute(np.repeat(PICTURES[:1], ROWS, 0), 0, ROWS)
    assert name in SHARED or any(np.abs(each - equal[0]).max() > 0.01 for each in equal[1:])
    for variable, value in zip(network.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32"])
def test_numbers_have_the_bounds_of_keras(dtype):
    with LayerDraws(Random(0, tf.zeros((), tf.int64), 0, 64)).in_use():
        if dtype == "int32":
            drawn = keras.random.randint((64, 999), -2, 3)
        else:
            drawn = keras.random.uniform((64, 999), dtype=dtype)
    numbers = tf.cast(drawn, tf.float32).numpy()
    low, high, mean = (-2, 2, 0) if dtype == "int32" else (0, 0.9999999, 0.5)
    assert low <= numbers.min() and numbers.max() <= high and abs(numbers.mean() - mean) < 0.05


class RandomTiny(Tiny):
    """Both networks draw, and a loss does: labels with noise, of real and fake samples together."""

    def networks(self):
        generator, discriminator = super().networks().values()
        x = keras.Input((8,))
        y = layers.LSTM(3, dropout=0.4, recurrent_dropout=0.2)(layers.Reshape((4, 2))(layers.Dropout(0.3)(x)))
        generator = keras.Model(x, generator(layers.Concatenate()([y, layers.Dense(5)(Sampling()(x))])))
        pixels = keras.Input(discriminator.input_shape[1:])
        y = layers.SpatialDropout2D(0.3)(layers.GaussianNoise(0.2)(pixels))
        return {"generator": generator, "discriminator": keras.Model(pixels, discriminator(y))}

    def optimizers(self):
        return {name: keras.optimizers.SGD(0.1) for name in ("generator", "discriminator")}

    def judge(self, nets, batch):
        fake = nets.generator(batch.latents)
        logits = nets.discriminator(tf.concat([fake, batch.images], 0))
        labels = tf.repeat([[1.0], [0.0]], batch.images.shape[0], 0)
        labels += 0.05 * tf.random.uniform(tf.shape(labels))
        again = nets.discriminator(batch.images) - nets.discriminator(batch.images)
        return tf.reduce_mean((logits - labels) ** 2), {"again": tf.reduce_mean(again**2)}


@pytest.mark.long
@pytest.mark.parametrize("how", ["micro-batches", "nothing shared"])
def test_calls_of_two_updates_have_the_same_numbers_shared_or_not(monkeypatch, how):
    one = trained(tiny_run(RandomTiny), 5)
    if how == "nothing shared":
        monkeypatch.setattr(SharedForward, "find", lambda *_, **__: None)
    for name, value in trained(tiny_run(RandomTiny, accumulate=2 if how == "micro-batches" else 1), 5).items():
        np.testing.assert_allclose(one[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


class DrawingSamples(RandomTiny):
    """The generator draws in inference mode, too: a Sampling layer, and a function of TensorFlow."""

    def sample(self, nets, batch):
        return nets.generator(batch.latents + 0.1 * tf.random.normal(tf.shape(batch.latents)))


def test_a_sample_has_its_numbers_in_every_batch_and_in_an_export(tmp_path):
    run = tiny_run(DrawingSamples)
    drawing, blank = Drawing(run.recipe, run.state.sampling_nets), {"images": np.zeros((8, 8, 1), np.uint8)}
    fewer, more = (next(draw_batches(drawing, itertools.repeat(blank), n, n))[0]["images"] for n in (2, 5))
    np.testing.assert_allclose(fewer, more[:2], atol=1e-6)
    plain = run.state.networks["generator"](
        drawing.batch(tf.range(5, dtype=tf.int64), {"images": tf.zeros((5, 8, 8, 1))}).latents
    )
    assert np.abs(plain - more).max() > 1e-3
    Serving(run.recipe, run.state.sampling_nets, in_units=False).save(tmp_path)
    exported, numbers = tf.saved_model.load(tmp_path), tf.range(5, dtype=tf.int64)
    drawn = exported.draw(numbers)
    np.testing.assert_allclose(exported.serve(**drawn, numbers=numbers)["samples"], more, atol=1e-6)


def test_a_call_that_a_loss_repeats_draws_again():
    run = tiny_run(RandomTiny)
    metrics, _ = stage_step(run)(0, 0, data_of(run))
    assert metrics["judge/again"] > 1e-6


def refused(call):
    return type("Refused", (Tiny,), {"judge": lambda self, nets, batch: (call(nets, batch), {})})


def within_loop(nets, batch):
    numbers = tf.map_fn(lambda n: n + tf.random.normal(()), batch.latents[:, 0])
    return tf.reduce_mean(numbers)


REFUSED = {
    "in a loop": within_loop,
    "in tf.recompute_grad": lambda nets, batch: tf.recompute_grad(lambda x: tf.nn.dropout(x, 0.5))(batch.latents),
    "of a gamma": lambda nets, batch: tf.reduce_mean(keras.random.beta((16,), 2.0, 2.0)),
    "size is not known": lambda nets, batch: tf.reduce_mean(
        tf.random.normal(tf.shape(tf.boolean_mask(batch.latents, batch.labels > 3)))
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_kept_is_refused_by_name(what):
    with pytest.raises(UserError, match=f"update judge: the loss draws numbers .*{what}"):
        tiny_run(refused(REFUSED[what]))
