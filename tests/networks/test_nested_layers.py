"""The layers of a network and what they created; tests/networks/test_newer_versions.py hides Keras' lists."""

import keras
import numpy as np

from hvdgan.networks.nested_layers import created_as_not_trainable, layers_of


class Twice(keras.Layer):
    """Layers in an attribute, in a list and in a dictionary, with a counter of its own."""

    def __init__(self, **more):
        super().__init__(**more)
        self.single = keras.layers.Dense(2, name="single")
        self.listed = [keras.layers.BatchNormalization(name="listed")]
        self.named = {"relu": keras.layers.LeakyReLU(name="relu")}

    def build(self, shape):
        self.counter = self.add_weight(shape=(), trainable=False, name="counter")

    def call(self, x):
        return self.named["relu"](self.listed[0](self.single(x)))


def test_the_layers_of_a_network_are_those_at_any_depth():
    norm, twice = keras.layers.BatchNormalization(name="norm"), Twice(name="twice")
    inner = keras.Sequential([keras.Input((4,)), norm, keras.Sequential([keras.Input((4,)), twice])])
    network = keras.Sequential([keras.Input((4,)), inner])
    found = layers_of(network)
    assert [found.count(each) for each in (inner, norm, twice, twice.single, network)] == [1, 1, 1, 1, 0]
    assert {"listed", "relu"} <= {each.name for each in found}


def test_what_a_layer_created_as_not_trainable_is_its_own():
    twice = Twice(name="twice")
    network = keras.Sequential([keras.Input((4,)), twice])
    network(np.zeros((2, 4)))
    assert [each.name for each in created_as_not_trainable(twice)] == ["counter"]
    assert [each.name for each in created_as_not_trainable(twice.listed[0])] == ["moving_mean", "moving_variance"]
    assert created_as_not_trainable(network) == []
