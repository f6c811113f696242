"""What a recipe knows of the data: shapes, physical units with gradients, and what older checkpoints say.

Modules: recipe.data_spec.
"""

import json

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.cli.errors import UserError
from hvdgan.recipe import DataSpec
from hvdgan.recipe.data_spec import of_json
from hvdgan.values.sample_values import Layout, SampleValues, of_pixels
from hvdgan.values.steps import NUMPY, Standard
from hvdgan.values.value_map import ValueMap, parse

NUMBERS = np.random.default_rng(0).normal(size=(3, 4, 5, 2)).astype(np.float32)
MAPS = ["none", "range:-3,11", "log1p", "power:0.85", "log1p+range:0,4", "0=power:0.5;1=log1p"]


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
    differences = value_map.inverse_of(NUMBERS.astype(np.float64) + step, NUMPY)
    differences = differences - value_map.inverse_of(NUMBERS.astype(np.float64) - step, NUMPY)
    np.testing.assert_allclose(slopes, differences / (2 * step), rtol=2e-3, atol=1e-3)


def test_each_channel_has_its_own_mean_and_deviation():
    value_map = ValueMap(((Standard((1.0, -200.0), (0.1, 30.0)),),), ("t", "p"))
    np.testing.assert_allclose(
        spec_with(value_map).physical(tf.constant(NUMBERS)), value_map.inverse(NUMBERS), rtol=1e-5
    )


def test_parts_have_maps_of_their_own():
    values = SampleValues(*(parse(text, "--values", ("0",)) for text in ("range:0,2", "range:0,4", "range:0,8")))
    spec = DataSpec((4, 4, 1), 9, input_shape=(2, 2, 1), conditions=("0",), values=values)
    zero = tf.zeros((1, 1))
    assert [float(spec.physical(zero, part)[0, 0]) for part in ("images", "inputs", "conditions")] == [1, 2, 4]
    assert DataSpec((4, 4, 1), 9).physical(zero) is zero


@pytest.mark.parametrize(
    ("shape", "values", "pictures"),
    [
        ((8, 8, 3), None, True),
        ((8, 6, 1), of_pixels(1, paired=False), True),
        ((8, 8, 1), SampleValues(parse("none", "--values", ("0",))), False),
        ((8, 8, 4), None, False),
        ((4, 8, 8, 1), None, False),
        ((7,), None, False),
    ],
)
def test_pictures_are_grey_or_rgb_with_the_map_of_pixels(shape, values, pictures):
    assert DataSpec(shape, 9, values=values).is_pictures == pictures


@pytest.mark.parametrize("pixels", [True, False])
def test_what_the_data_are_counts_for_more_than_their_map(pixels):
    spec = DataSpec((8, 8, 3), 9, values=of_pixels(3, paired=False), pixels=pixels)
    facts = json.loads(json.dumps(spec.to_json()))
    assert of_json(facts) == spec and of_json(facts).is_pictures == pixels
    del facts["pixels"]  # as in older checkpoints
    assert of_json(facts).is_pictures


def test_the_size_of_a_square_alone_is_one_number():
    assert (DataSpec((8, 8, 3), 9).image_size, DataSpec((8, 8, 3), 9).channels) == (8, 3)
    for shape in ((8, 6, 3), (8, 8, 8, 1), (8,)):
        with pytest.raises(UserError, match=r"takes square pictures \(H, H, C\), .*; crop them with --crop, .* --fit"):
            _ = DataSpec(shape, 9).image_size


MAPPED = SampleValues(
    parse("log1p", "--values", ("u", "v"), ("m", "m")), conditions=parse("none", "-", ("energy", "theta"))
)
WHOLE = DataSpec(
    (8, 8, 2),
    7,
    3,
    input_shape=(4, 4, 5),
    conditions=("energy", "theta"),
    constants_shape=(8, 8, 1),
    values=MAPPED,
    layout=Layout((16, 16, 2), (8, 8, 5), (8, 8)),
    class_names=("calm", "gale", "storm"),
)


@pytest.mark.parametrize("spec", [WHOLE, DataSpec((5,), 4), DataSpec((4, 8, 8, 1), 9, 2)])
def test_facts_are_read_again_from_json(spec):
    assert of_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_checkpoint_from_before_classes_had_names_is_read():
    facts = WHOLE.to_json()
    del facts["class_names"]
    assert of_json(facts).class_names == () and of_json(facts).num_classes == 3


@pytest.mark.parametrize("paired", [False, True])
def test_what_older_checkpoints_say_is_read(paired):
    spec = of_json({"image_size": 32, "channels": 3, "num_images": 60, "num_classes": 10}, paired=paired)
    assert (spec.shape, spec.num_images, spec.num_classes, spec.is_pictures) == ((32, 32, 3), 60, 10, True)
    assert spec.input_shape == ((32, 32, 3) if paired else None)
    assert spec.parts.record == (32, 32, 6 if paired else 3) and spec.values == of_pixels(3, paired=paired)


@pytest.mark.parametrize("facts", [{}, {"shape": [8, 8, 1]}, {"image_size": 8}])
def test_other_facts_are_an_error(facts):
    with pytest.raises((KeyError, TypeError)):
        of_json(facts)
