"""The layers of a network and what they created, found with Keras' private lists and without them."""

import sys

import keras
import numpy as np
import pytest

from hvdgan.cli import launcher
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


@pytest.fixture(params=["as it is", "without private lists"])
def keras_lists(request, monkeypatch):
    """Keras as it is, and a Keras that hides its private lists from hvdgan."""
    launcher.warn_once.cache_clear()
    if request.param != "as it is":
        plain = keras.Layer.__getattribute__

        def hide(layer, name):
            if name in ("_flatten_layers", "_non_trainable_variables"):
                reader = sys._getframe(1).f_code.co_filename
                if reader.endswith("nested_layers.py"):
                    raise AttributeError(name)
            return plain(layer, name)

        monkeypatch.setattr(keras.Layer, "__getattribute__", hide, raising=False)
    return request.param


def test_the_layers_of_a_network_are_those_at_any_depth(keras_lists, capfd):
    norm, twice = keras.layers.BatchNormalization(name="norm"), Twice(name="twice")
    inner = keras.Sequential([keras.Input((4,)), norm, keras.Sequential([keras.Input((4,)), twice])])
    network = keras.Sequential([keras.Input((4,)), inner])
    for _ in range(2):
        found = layers_of(network)
    assert [found.count(each) for each in (inner, norm, twice, twice.single, network)] == [1, 1, 1, 1, 0]
    assert {"listed", "relu"} <= {each.name for each in found}
    said = capfd.readouterr().err.count("has no list of nested layers")
    assert said == (keras_lists != "as it is")


def test_what_a_layer_created_as_not_trainable_is_its_own(keras_lists):
    twice = Twice(name="twice")
    network = keras.Sequential([keras.Input((4,)), twice])
    network(np.zeros((2, 4)))
    assert [each.name for each in created_as_not_trainable(twice)] == ["counter"]
    assert [each.name for each in created_as_not_trainable(twice.listed[0])] == ["moving_mean", "moving_variance"]
    assert created_as_not_trainable(network) == []
