"""Each step of a value map against its formula, in two types and two libraries; what is no step is refused."""

import json

import numpy as np
import pytest
from keras import ops

from hvdgan.errors import UserError
from hvdgan.values import transforms
from hvdgan.values.transforms import Range, Standard

NUMBERS = np.array([[-3.0, 0.0], [0.25, 2.0], [7.5, 1000.0]])
POSITIVE = np.array([[1e-8, 3e-4], [0.1, 2.0], [7.5, 2e6]])
SHARES = np.array([[1e-5, 0.25], [0.5, 0.75], [0.9, 0.9999]])
CLASSES = np.array([[1.0], [0.0], [2.0], [1.0]])

FORMULAS = [
    ("range:-4,1.2e1", NUMBERS, lambda x: -1 + 2 * (x + 4) / 16),
    ("power:0.85", NUMBERS, lambda x: np.where(x < 0, -1, 1) * np.abs(x) ** 0.85),
    ("power:3", NUMBERS, lambda x: x**3),
    ("log1p", POSITIVE, lambda x: np.log(1 + x)),
    ("log10", POSITIVE, lambda x: np.log(x) / np.log(10)),
    ("sqrt", POSITIVE, lambda x: x**0.5),
    ("asinh", NUMBERS, lambda x: np.sign(x) * np.log(np.abs(x) + np.sqrt(x**2 + 1))),
    ("asinh:0.01", NUMBERS, lambda x: np.arcsinh(100 * x)),
    ("onehot:3", CLASSES, lambda x: np.eye(3)[x[:, 0].astype(int)]),
    ("logit", SHARES, lambda x: np.log(x / (1 - x))),
    ("logit:0.001", SHARES, lambda x: np.log((0.001 + 0.998 * x) / (1 - (0.001 + 0.998 * x)))),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("text", "numbers", "formula"), FORMULAS, ids=[text for text, _, _ in FORMULAS])
def test_a_step_follows_its_formula_and_is_undone(text, numbers, formula, dtype):
    (step,) = transforms.parse(text, "--values")
    close = {"float32": {"rtol": 2e-5, "atol": 1e-6}, "float64": {"rtol": 1e-7, "atol": 1e-15}}[dtype]
    for library in (np, ops):
        mapped = step.forward(library.array(numbers, dtype=dtype), library)
        assert mapped.dtype == dtype
        np.testing.assert_allclose(mapped, formula(numbers), **close)
        np.testing.assert_allclose(step.inverse(mapped, library), numbers, **close)
    assert str(step) == text.replace("1.2e1", "12")
    assert transforms.of(step.name, json.loads(json.dumps(step.arguments()))) == step


@pytest.mark.parametrize(
    ("text", "taken", "lost"),
    [("log10", [1e-30], [0, -1]), ("sqrt", [0], [-1e-9]), ("logit", [0.5], [0, 1, -0.1, 1.1])]
    + [("onehot:3", [[0], [2]], [[3], [0.5], [-1]])]
    + [("logit:1e-6", [0, 1], [-0.1, 1.1]), ("log1p", [0, -0.9], [-1, -2])],
)
def test_numbers_outside_of_a_domain_become_no_finite_ones(text, taken, lost):
    (step,) = transforms.parse(text, "--values")
    with np.errstate(all="ignore"):
        assert np.isfinite(step.forward(np.array(taken, float), np)).all()
        assert not np.isfinite(step.forward(np.array(lost, float), np)).any()


def test_standard_has_its_own_numbers_for_each_channel_and_a_range_clips_nothing():
    step = Standard((1.0, -2.0), (0.5, 10.0))
    mapped = step.forward(NUMBERS, np)
    np.testing.assert_allclose(mapped, [[-8, 0.2], [-1.5, 0.4], [13, 100.2]])
    np.testing.assert_allclose(step.inverse(mapped, np), NUMBERS)
    assert Range(10, 30).forward(np.array([10.0, 20.0, 30.0, 50.0, -10.0]), np).tolist() == [-1, 0, 1, 3, -3]


REFUSED = [
    ("", "'' is no value map; expected none, range:LOW,HIGH"),
    ("my_maps:there,back", "'my_maps:there,back' is no value map"),
    ("range:1", "range:1: expected range:LOW,HIGH with LOW below HIGH, such as range:0,1"),
    ("range:1,1", "range:1,1: expected range:LOW,HIGH"),
    ("standard:1,2", "standard:1,2: expected standard"),
    ("power:-1", "power:-1: expected power:EXPONENT with a number above 0"),
    ("onehot:1.5", "onehot:1.5: expected onehot:CLASSES with a whole number above 1"),
    ("asinh:0", "asinh:0: expected asinh, or asinh:SCALE with a number above 0"),
    ("logit:0.5", "logit:0.5: expected logit, or logit:MARGIN with a number from 0 to below 0.5"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_is_no_step(text, message):
    with pytest.raises(UserError) as caught:
        transforms.parse(text, "--values GIVEN")
    assert str(caught.value).startswith("--values GIVEN: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)
