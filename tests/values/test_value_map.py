"""A map of all channels, or one for each: exact inverse for every type, statistics, JSON, and what is refused.

The parts of a sample have shapes and maps of their own. Modules: values.sample_values"""

import json

import numpy as np
import pytest

from hvdgan.errors import UserError
from hvdgan.values import sample_values
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import ValueMap, of_json, parse

CHANNELS = ("t", "u", "q")
RNG = np.random.default_rng(0)
MAGNITUDES = (RNG.uniform(-1, 1, (50, 4, 3)) * 10.0 ** RNG.integers(-3, 4, (50, 4, 3))).astype(np.float32)


def resolved(text, values, channels=CHANNELS):
    """A map whose missing statistics are those of the values."""
    made = parse(text, "--values", channels)
    while made.lacks_statistics:
        before = made.before_statistics(values).reshape(-1, len(channels))
        made = made.with_statistics(before.mean(axis=0).tolist(), before.std(axis=0).tolist())
    return made


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.uint8, np.int32])
@pytest.mark.parametrize("text", ["range:-1000,1000", "power:0.5+standard", "t=none;u=standard;q=range:-9,9"])
def test_the_inverse_gives_the_data_back(text, dtype):
    values = MAGNITUDES if np.dtype(dtype).kind == "f" else np.abs(MAGNITUDES) % 127
    values = values.astype(dtype)
    made = resolved(text, values)
    mapped = made.forward(values)
    assert mapped.dtype == np.float32 and mapped.shape == values.shape
    back = made.inverse(mapped)
    assert back.dtype == np.float32
    # float32 between -1 and 1 resolves the whole range in steps of 1e-7.
    np.testing.assert_allclose(back, values.astype(np.float64), rtol=1e-5, atol=2e-4)


def test_numbers_that_float32_rounds_are_mapped_in_float64():
    values = np.array([[2**31 - 1], [2**31 - 2**10], [2**31 - 2**20]], np.int32)
    made = parse(f"range:{2**31 - 2**20},{2**31 - 1}", "--values", ("0",))
    np.testing.assert_allclose(made.forward(values)[:, 0], [1, 1 - 2 * (2**10 - 1) / (2**20 - 1), -1], atol=1e-6)


@pytest.mark.parametrize("text", ["none", "log1p+standard+range:-3,3", "t=standard;u=none;q=power:0.5"])
def test_a_map_is_made_again_from_json(text):
    made = ValueMap(resolved(text, np.abs(MAGNITUDES)).chains, CHANNELS, ("K", "m/s", ""))
    again = of_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    values = np.abs(MAGNITUDES)
    np.testing.assert_array_equal(again.forward(values), made.forward(values))


REFUSED = [
    ("t=none", "no map for u, q; add u=none, or another one, after a ;"),
    ("t=none;x=none", "there is no channel 'x'; expected t, u, q"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_is_no_map(text, message):
    with pytest.raises(UserError) as caught:
        parse(text, "--values", CHANNELS)
    assert str(caught.value).startswith(f"--values {text}: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_maps_are_made_again_from_json_and_described():
    values = SampleValues(
        parse("log1p", "--values", ("0", "1")),
        arrays={"map": parse("onehot:4", "--values-of map=", ("0",), widens=True)},
        conditions=parse("energy=range:0,500;theta=none", "--condition-values", ("energy", "theta"), ("GeV", "")),
    )
    assert sample_values.of_json(json.loads(json.dumps(values.to_json()))) == values
    lines = ["images: log1p", "conditions (energy [GeV], theta): energy=range:0,500; theta=none"]
    assert values.lines() == [*lines, "arrays/map: onehot:4"]
