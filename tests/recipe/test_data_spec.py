"""What a recipe knows of the data: shapes, and physical units with gradients. Modules: recipe.data_spec"""

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.recipe import DataSpec
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
