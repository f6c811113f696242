"""Conditions of samples, from a word or a table, in the units of the data."""

import numpy as np
import pytest

from hvdgan.cli.errors import UserError
from hvdgan.inference.given_conditions import described, given
from hvdgan.recipe import DataSpec
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import parse

NAMES = ("energy", "theta")
VALUES = SampleValues(
    parse("none", "--values", ("0",)),
    conditions=parse("energy=range:0,100;theta=none", "--condition-values", NAMES),
)
SPEC = DataSpec((4, 4, 1), 9, conditions=NAMES, values=VALUES)


def test_one_condition_for_all():
    numbers = given(" theta = 1.5, energy=50", None, SPEC)
    assert numbers.dtype == np.float32 and numbers.tolist() == [[0.0, 1.5]]


@pytest.mark.parametrize(("energy", "count"), [("100", 0), ("5000", 1), ("-1", 1)])
def test_one_line_warns_of_a_condition_outside_of_the_declared_range(capsys, energy, count):
    given(f"energy={energy},theta=700", None, SPEC)
    where = "1 of 2 numbers lie outside of the declared range, and are not clipped: energy=range:0,100; theta=none"
    warning = f"hvdgan: warning: --condition energy={energy},theta=700: {where}"
    assert capsys.readouterr().err.splitlines() == [warning] * count


@pytest.mark.parametrize("kind", ["csv", "npy"])
def test_a_table(tmp_path, kind):
    path = tmp_path / f"c.{kind}"
    if kind == "csv":
        path.write_text("other,theta,energy\n9,1,0\n9,2,100\n\n")
    else:
        np.save(path, np.array([[0, 1], [100, 2]]))
    assert given(None, path, SPEC).tolist() == [[-1, 1], [1, 2]]


def test_none_are_given():
    assert given(None, None, SPEC) is None
    assert described(SPEC) == "--condition energy=NUMBER,theta=NUMBER, or a table with --conditions FILE"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("energy=50", "--condition energy=50: no value for theta; expected energy, theta"),
        ("energy=50,phi=1", "'phi=1' is not NAME=NUMBER with one of energy, theta"),
        ("energy=50,theta=nan", "'theta=nan' is not NAME=NUMBER"),
        ("energy=50,theta", "'theta' is not NAME=NUMBER"),
        ("energy=1,energy=2,theta=0", "'energy=2' is not NAME=NUMBER"),
        ("energy=1_0,theta=0", "'energy=1_0' is not NAME=NUMBER"),
    ],
)
def test_words_that_are_no_condition(text, message):
    with pytest.raises(UserError) as caught:
        given(text, None, SPEC)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"energy\n1\n", "cannot be read: .*expected CSV with the columns energy, theta"),
        (b"energy,theta\n1\n", "cannot be read"),
        (b"energy,theta\n1,x\n", "cannot be read"),
        (b"energy,theta\n1_0,1\n", "cannot be read"),
        (b"energy,theta,energy\n1,2,3\n", "two columns are named energy; rename or remove one"),
        (b"", "cannot be read"),
        (b"energy,theta\n", r"expected \(N, 2\) numbers for energy, theta"),
        (b"energy,theta\n1,inf\n", "expected finite numbers"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, content, message):
    path = tmp_path / "c.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        given(None, path, SPEC)
    assert str(caught.value).startswith(f"--conditions {path}: ") and "\n" not in str(caught.value)


def test_arrays_that_do_not_fit(tmp_path):
    for number, array in enumerate((np.zeros((3, 3)), np.zeros(2), np.zeros((0, 2)), np.array([["a", "b"]]))):
        np.save(tmp_path / f"{number}.npy", array)
        with pytest.raises(UserError, match=r"expected \(N, 2\) numbers for energy, theta"):
            given(None, tmp_path / f"{number}.npy", SPEC)
    np.save(tmp_path / "object.npy", np.array([[{}, {}]], object))
    with pytest.raises(UserError, match="cannot be read"):
        given(None, tmp_path / "object.npy", SPEC)
    with pytest.raises(UserError, match="cannot be read"):
        given(None, tmp_path / "missing.csv", SPEC)


def test_a_run_without_conditions_and_both_flags(tmp_path):
    with pytest.raises(UserError, match="--condition energy=1: the run has no conditions; leave the flag out"):
        given("energy=1", None, DataSpec((4, 4, 1), 9))
    with pytest.raises(UserError, match="one condition for all samples; leave it out beside --conditions"):
        given("energy=1,theta=2", tmp_path / "c.csv", SPEC)


def test_numbers_that_the_map_of_the_run_cannot_take(tmp_path):
    conditions = parse("energy=log1p;theta=none", "--condition-values", NAMES)
    spec = DataSpec((4, 4, 1), 9, conditions=NAMES, values=SampleValues(VALUES.images, conditions=conditions))
    end = "; expected numbers that the map of the run makes finite"
    with pytest.raises(UserError) as refused:
        given("energy=-5,theta=1", None, spec)
    assert str(refused.value) == (
        f"--condition energy=-5,theta=1: energy is -5, which its map log1p turns into nan{end}"
    )
    path = tmp_path / "c.csv"
    path.write_text("energy,theta\n0,1\n-1,1\n")
    with pytest.raises(UserError) as refused:
        given(None, path, spec)
    assert str(refused.value) == (
        f"--conditions {path}: energy of row 2 is -1, which its map log1p turns into -inf{end}"
    )
