"""The parts of a sample in a record: shapes, dividing and joining, crops; and the maps of all parts."""

import json

import numpy as np
import pytest

from hvdgan.values import sample_values
from hvdgan.values.sample_values import Layout, SampleValues
from hvdgan.values.value_map import parse

RNG = np.random.default_rng(0)

LAYOUTS = [
    (Layout((8, 6, 3)), (8, 6, 3)),
    (Layout((8, 6, 3), (8, 6, 2)), (8, 6, 5)),  # side by side in the channels
    (Layout((8, 6, 3), (4, 3, 5)), (8 * 6 * 3 + 4 * 3 * 5,)),
    (Layout((4, 4, 4, 1), (7,)), (71,)),
]


@pytest.mark.parametrize(("layout", "record"), LAYOUTS)
def test_records_are_joined_and_divided(layout, record):
    assert layout.record == record
    images = RNG.normal(size=(3, *layout.shape)).astype(np.float32)
    if layout.input_shape is None:
        assert layout.split(images) == (None, images)
        return
    inputs = RNG.normal(size=(3, *layout.input_shape)).astype(np.float32)
    records = layout.joined(inputs, images, np.dtype(np.float32))
    assert records.shape == (3, *record)
    for found, expected in zip(layout.split(records), (inputs, images), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_maps_are_made_again_from_json_and_described():
    values = SampleValues(
        parse("log1p", "--values", ("0", "1")),
        conditions=parse("energy=range:0,500;theta=none", "--condition-values", ("energy", "theta"), ("GeV", "")),
    )
    assert sample_values.of_json(json.loads(json.dumps(values.to_json()))) == values
    assert values.lines() == ["images: log1p", "conditions (energy [GeV], theta): energy=range:0,500; theta=none"]
