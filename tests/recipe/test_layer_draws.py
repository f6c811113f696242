"""What layers draw is a function of the step and of the sample, never of the rank, and Keras' generators stay."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from hvdgan.recipe.draws import Random
from hvdgan.recipe.layer_draws import LayerDraws
from hvdgan.recipe.nets import Nets

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
        return x + tf.random.stateless_normal(tf.shape(x), seed=seed + 12)


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
    "RandomElasticTransform": lambda: layers.RandomElasticTransform(1.0),
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
        lambda x: tf.random.normal(tf.shape(x)) + tf.random.uniform([x.shape[0], 1, 1, 1]) + tf.random.uniform([])
    ),
    "tf.nn.dropout": lambda: layers.Lambda(lambda x: tf.nn.dropout(x, 0.3, noise_shape=[tf.shape(x)[0], 1, SIZE, 2])),
    "randint": lambda: drawn(lambda x: keras.random.randint(keras.ops.shape(x), 2, 5)),
    "categorical": lambda: drawn(lambda x: keras.random.categorical(x[:, 0, 0], 1)[:, None, None]),
    "beta": lambda: drawn(lambda x: keras.random.beta(keras.ops.shape(x), 0.5, 2.0)),
    "binomial": lambda: drawn(lambda x: keras.random.binomial(keras.ops.shape(x), 5.0, 0.5)),
}


def computed(network, x, first, count, step=3, pack=1, training=True):
    """The output of a network in a loss, for a part of the global batch."""
    random, x = Random(1, tf.constant(step, tf.int64), first, count), tf.constant(x)

    @tf.function(autograph=False)
    def call():
        with LayerDraws(random, "update", pack=pack).in_use():
            return Nets({"critic": network}, training=True).critic(x, training=training)

    return call().numpy()


@pytest.mark.parametrize("name", LAYERS)
def test_a_part_of_a_batch_has_the_numbers_of_the_whole_batch(name):
    x = keras.Input(PICTURES.shape[1:])
    network = keras.Model(x, LAYERS[name]()(x))
    before = [variable.numpy() for variable in network.variables]
    whole = computed(network, PICTURES, 0, ROWS)
    parts = [computed(network, PICTURES[n : n + 4], n, 4) for n in (0, 4)]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=2e-5)
    np.testing.assert_allclose(computed(network, PICTURES[3:4], 3, 1), whole[3:4], atol=2e-5)
    joined = computed(network, np.concatenate([PICTURES, PICTURES[::-1]]), 0, ROWS)
    part = computed(network, np.concatenate([PICTURES[4:], PICTURES[:4][::-1]]), 4, 4)
    np.testing.assert_allclose(part, np.concatenate([joined[4:8], joined[12:]]), atol=2e-5)
    packed = computed(network, PICTURES[4:], 8, 8, pack=2)
    np.testing.assert_allclose(packed, whole[4:], atol=2e-5)
    np.testing.assert_array_equal(computed(network, PICTURES, 0, ROWS), whole)
    assert np.abs(computed(network, PICTURES, 0, ROWS, step=4) - whole).max() > 0.01
    if name not in ("Dropout of all samples", "NoisyKernel", "RandomCrop"):
        twice = computed(network, np.repeat(PICTURES[:1], ROWS, 0), 0, ROWS)
        assert any(np.abs(each - twice[0]).max() > 0.01 for each in twice[1:])
    for variable, value in zip(network.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
