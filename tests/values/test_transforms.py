"""Each step of a value map against its formula; what is no step is refused in one line."""

import hashlib
import json
import sys

import numpy as np
import pytest

from hvdgan.errors import UserError
from hvdgan.values import transforms
from hvdgan.values.transforms import NUMPY, Range, Standard

NUMBERS = np.array([[-3.0, 0.0], [0.25, 2.0], [7.5, 1000.0]])

FORMULAS = [
    ("range:-4,12", lambda x: -1 + 2 * (x + 4) / 16),
    ("range:0,1e3", lambda x: 2 * x / 1000 - 1),
    ("power:0.85", lambda x: np.where(x < 0, -1, 1) * np.abs(x) ** 0.85),
    ("power:3", lambda x: x**3),
]


@pytest.mark.parametrize(("text", "formula"), FORMULAS)
def test_a_step_follows_its_formula_and_is_undone(text, formula):
    (step,) = transforms.parse(text, "--values")
    mapped = step.forward(NUMBERS, NUMPY)
    np.testing.assert_allclose(mapped, formula(NUMBERS), rtol=1e-14)
    np.testing.assert_allclose(step.inverse(mapped, NUMPY), NUMBERS, rtol=1e-12, atol=1e-13)
    assert transforms.of(step.name, step.arguments()) == step


def test_standard_has_its_own_numbers_for_each_channel_and_a_range_clips_nothing():
    step = Standard((1.0, -2.0), (0.5, 10.0))
    mapped = step.forward(NUMBERS, NUMPY)
    np.testing.assert_allclose(mapped, [[-8, 0.2], [-1.5, 0.4], [13, 100.2]])
    np.testing.assert_allclose(step.inverse(mapped, NUMPY), NUMBERS)
    assert Range(10, 30).forward(np.array([10.0, 20.0, 30.0, 50.0, -10.0]), NUMPY).tolist() == [-1, 0, 1, 3, -3]


REFUSED = [
    ("", "'' is no value map; expected none, range:LOW,HIGH"),
    ("range:1", "range:1: expected range:LOW,HIGH with LOW below HIGH, such as range:0,1"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_is_no_step(text, message):
    with pytest.raises(UserError) as caught:
        transforms.parse(text, "--values GIVEN")
    assert str(caught.value).startswith("--values GIVEN: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


OWN = """
import numpy as np

def there(x):
    return np.sinh(x)

def back(x):
    return np.arcsinh(x)

def wrong(x):
    return x + 1

def fails(x):
    raise ValueError("not a number\\nat all")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_values.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """An installed command, for which Python searches the folder of the command and not the working one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", str(tmp_path))])
    sys.modules.pop("own_values", None)
    yield tmp_path
    sys.modules.pop("own_values", None)


def read_back(folder, code, module="own_values", there="there"):
    """The step of a checkpoint whose manifest has the digest of this code."""
    (folder / "own_values.py").write_text(code)
    return transforms.of("own", [module, there, "back", hashlib.sha256(code.encode()).hexdigest()])


@pytest.mark.parametrize("module", ["builtins", "numpy.lib.format"])
def test_a_checkpoint_cannot_name_code_that_is_no_file_of_the_users(installed, module):
    """Otherwise the writer of a manifest could let its reader call builtins.exec, or any installed function."""
    with pytest.raises(UserError, match=f"there is no {module}.py of your own"):
        read_back(installed, OWN, module).inverse(NUMBERS, NUMPY)


def test_a_checkpoint_cannot_name_a_file_that_has_been_edited(installed):
    step = read_back(installed, OWN)
    (installed / "own_values.py").write_text(f"raise SystemExit\n{OWN}")
    assert step.has_changed
    with pytest.raises(UserError, match="own_values.py has changed since the map was declared"):
        step.inverse(NUMBERS, NUMPY)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("own_values:there,wrong", "wrong of own_values does not undo there: 1 became 2.1752"),
        ("own_values:fails,back", "fails of own_values: ValueError: not a number at all"),
    ],
)
def test_functions_that_do_not_undo_each_other_are_refused(text, message):
    with pytest.raises(UserError) as caught:
        transforms.parse(text, "--values")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_declared_map_is_made_again_with_the_digest_of_its_file(installed):
    (installed / "own_values.py").write_text(OWN)
    (before,) = transforms.parse("own_values:there,back", "--values")
    saved = transforms.of(before.name, json.loads(json.dumps(before.arguments())))
    assert saved == before and saved.sha256 == before.sha256 and not saved.has_changed
    assert str(saved) == "own_values:there,back"
    np.testing.assert_array_equal(saved.forward(NUMBERS[:2], NUMPY), np.sinh(NUMBERS[:2]))
    np.testing.assert_array_equal(saved.inverse(NUMBERS, NUMPY), np.arcsinh(NUMBERS))
