"""What a recipe knows of the data: shapes, and physical units with gradients. Modules: recipe.data_spec"""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvdgan.recipe import DataSpec
from hvdgan.recipe.data_spec import of_json
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import parse

NUMBERS = np.random.default_rng(0).normal(size=(3, 4, 5, 2)).astype(np.float32)
MAPS = ["log1p+range:0,4", "0=power:0.5;1=log10", "0=asinh:0.5+sqrt;1=logit"]


def spec_with(value_map):
    return DataSpec((4, 5, 2), 9, values=SampleValues(value_map))


@pytest.mark.parametrize("text", MAPS)
def test_physical_units_in_tensorflow_are_those_of_numpy_and_have_gradients(text):
    value_map = parse(text, "--values", ("0", "1"))
    numbers = tf.constant(NUMBERS)
    with tf.GradientTape() as tape:
        tape.watch(numbers)
        physical = spec_with(value_map).physical(numbers)
    np.testing.assert_allclose(physical, value_map.inverse(NUMBERS), rtol=2e-5, atol=1e-6)
    slopes = tape.gradient(physical, numbers).numpy()
    step = 1e-4
    differences = value_map.inverse_of(NUMBERS.astype(np.float64) + step, np)
    differences = differences - value_map.inverse_of(NUMBERS.astype(np.float64) - step, np)
    np.testing.assert_allclose(slopes, differences / (2 * step), rtol=2e-3, atol=1e-3)


def test_what_the_data_say_of_an_array_goes_through_json_and_back_to_its_units():
    arrays = {"map": parse("onehot:4", "--values-of map=", ("0",), widens=True)}
    spec = DataSpec(
        (8, 8, 1), 9, array_shapes={"map": (4, 4, 4)}, values=SampleValues(parse("none", "", ("0",)), arrays=arrays)
    )
    again = of_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec and again.array_shapes["map"] == (4, 4, 4)
    with pytest.raises(KeyError, match="no array mask; the data have map:"):
        again.array_shapes["mask"]
    classes = NUMBERS[..., :1] // 1 % 4
    np.testing.assert_array_equal(again.physical(tf.constant(np.eye(4)[classes[..., 0].astype(int)]), "map"), classes)
    layer = keras.layers.Lambda(lambda numbers: again.physical(numbers, "map"))
    assert layer(keras.Input((4, 4, 4))).shape == (None, 4, 4, 1)
