"""Classes of other data: their labels are those of the run, or none."""

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.config import Config
from hvdgan.data import open_source
from hvdgan.inference.inputs import as_in_run
from hvdgan.recipe import DataSpec

SPEC = DataSpec((8, 8, 1), 9, 3, class_names=("a", "b", "c"))


@pytest.fixture
def opened(tmp_path):
    """A function that opens four pictures of each of some classes."""

    def make(*names):
        for name in names:
            (tmp_path / "-".join(names) / name).mkdir(parents=True)
            for number in range(4):
                pixels = np.full((8, 8), 50 * number + ord(name) % 50, np.uint8)
                Image.fromarray(pixels).save(tmp_path / "-".join(names) / name / f"{number}.png")
        return open_source(Config(data=str(tmp_path / "-".join(names)), image_size=8, channels=1))

    return make


def test_the_classes_of_the_run_stay(opened):
    source = opened("a", "b", "c")
    assert as_in_run(source, SPEC) == (source, "")


@pytest.mark.parametrize(("names", "numbers"), [("bc", [1, 2]), ("ac", [0, 2]), ("ab", [0, 1]), ("b", [1])])
def test_some_of_the_classes_have_the_numbers_of_the_run(opened, names, numbers):
    source = opened(*names)
    found, line = as_in_run(source, SPEC)
    assert not line and found.num_classes == 3 and list(found.class_names) == ["a", "b", "c"]
    indices = np.arange(len(source))
    assert found.facts(indices)["labels"].tolist() == np.repeat(numbers, 4).tolist()
    np.testing.assert_array_equal(found.fetch_batch(indices), source.fetch_batch(indices))
    assert found.fingerprint == source.fingerprint and found.stamp() not in (None, source.stamp())


@pytest.mark.parametrize("names", ["bx", "abcd", "xyz"])
def test_a_class_that_the_run_does_not_know_leaves_all_without_labels(opened, names):
    source = opened(*names)
    found, line = as_in_run(source, SPEC)
    assert found.labels is found.class_names is None and found.num_classes == 0
    assert "labels" not in found.facts(np.arange(2)) and len(found) == len(source)
    assert line.startswith(f"--data {source.name}: no labels are taken, because its classes are {', '.join(names)}, ")
    assert "and those of the run a, b, c; give" in line and "\n" not in line


def test_a_name_of_which_the_run_had_no_sample_is_not_known(opened):
    """Data may name more classes than they have, and the networks have seen the others only."""
    spec = DataSpec((8, 8, 1), 9, 2, class_names=("a", "b", "c"))
    assert as_in_run(opened("a", "c"), spec)[0].labels is None


def test_without_names_classes_are_paired_by_number(opened):
    digits = open_source(Config(image_size=8))
    assert as_in_run(digits, DataSpec((8, 8, 1), 9, 10)) == (digits, "")
    found, line = as_in_run(digits, DataSpec((8, 8, 1), 9, 4))
    assert found.labels is None and "its classes are 0 to 9, and those of the run 0 to 3" in line


def test_if_one_side_alone_has_names_a_line_says_that_numbers_are_compared(opened):
    digits = open_source(Config(image_size=8))
    found, line = as_in_run(digits, DataSpec((8, 8, 1), 9, 10, class_names=tuple("abcdefghij")))
    assert found is digits
    assert "classes are paired by number, because the data do not name them: a, b, c, d, e, ... are 0 to 9" in line
    source = opened("b", "c")
    found, line = as_in_run(source, DataSpec((8, 8, 1), 9, 2))  # of a checkpoint from before it had names
    assert found is source and "paired by number, because the checkpoint does not name them: b, c are 0 to 1" in line
    found, line = as_in_run(source, DataSpec((8, 8, 1), 9, 3))
    assert found.labels is None and "no labels are taken, because its classes are 0 to 1, and those of the run " in line


def test_data_or_runs_without_classes_stay(opened, tmp_path):
    source = opened("b", "c")
    assert as_in_run(source, DataSpec((8, 8, 1), 9)) == (source, "")
    np.save(tmp_path / "some.npy", np.zeros((5, 8, 8), np.uint8))
    unlabelled = open_source(Config(data=str(tmp_path / "some.npy"), image_size=8))
    assert as_in_run(unlabelled, SPEC) == (unlabelled, "")
