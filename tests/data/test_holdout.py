"""Which images are held out."""

import numpy as np
import pytest
from PIL import Image

from hvdgan.data import hold_out, open_source
from hvdgan.data.holdout import split
from hvdgan.errors import UserError
from hvdgan.errors.shared_errors import ALONE
from hvdgan.settings.config import Config
from reading import batches_of


def digits(fraction, image_size=8):
    source = open_source(Config(image_size=image_size))
    training, held = hold_out(source, fraction)
    return source, training, held and held.samples


def folder(path, names):
    path.mkdir()
    for number, name in enumerate(names):
        (path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 20 * number % 256, np.uint8)).save(path / name)
    return open_source(Config(data=str(path), image_size=8))


def test_every_image_is_on_one_side_with_its_label():
    source, training, held = digits(0.2)
    assert len(training) + len(held) == len(source) and 0.15 < len(held) / len(source) < 0.25
    assert training.total == held.total == len(source)
    assert set(held.labels) == set(range(10)) and held.num_classes == 10
    for size in (1, 3):  # no rank trains on what is held out
        for rank in range(size):
            with batches_of(training, global_batch_size=300, rank=rank, size=size) as batches:
                seen = np.concatenate([next(batches)["numbers"] for _ in range(6)])
            assert not np.isin(seen, held.indices).any()


def test_the_choice_is_the_same_for_ever_and_at_any_size():
    """On another machine, under a later version: these are the first digits held out."""
    for size in (8, 32):
        _, _, held = digits(0.05, size)
        assert len(held) == 100
        assert held.labels[:12].tolist() == [3, 1, 7, 2, 5, 4, 5, 6, 8, 7, 7, 0]


def test_files_are_chosen_by_name_wherever_they_lie_and_adding_some_moves_none(tmp_path):
    names = [f"{letter}/{number}.png" for letter in "ab" for number in range(60)]
    more = [*names, *(f"c/{number}.png" for number in range(60))]
    held = [held_names(folder(tmp_path / "here", names)), held_names(folder(tmp_path / "there", more))]
    assert held[0] and held[0] == {name for name in held[1] if not name.startswith(b"c/")}


def test_a_smaller_choice_is_not_the_first_ones(tmp_path):
    """Files are in the order of their classes, so the first ones would be of one class."""
    names = [f"{letter}/{number}.png" for letter in "ab" for number in range(60)]
    held = hold_out(folder(tmp_path / "two", names), 0.5)[1]
    assert set(held.some(12).labels) == {0, 1} and len(held.some(12)) == 12


def held_names(source):
    held = hold_out(source, 0.2)[1].samples
    return {held.key(index) for index in range(len(held))}


def test_fractions_of_none_and_of_all_are_refused(tmp_path):
    for fraction in (1e-9, 0.999999999):
        with pytest.raises(UserError, match="--holdout .* of 1797 samples of digits would be held out"):
            digits(fraction)
    three = folder(tmp_path / "few", ["a.png", "b.png", "c.png"])
    assert split({"": three}, None, ALONE, is_evaluated=False) == ({"": three}, {})


@pytest.mark.parametrize(("evaluated", "lines"), [(True, 1), (False, 0)])
def test_where_one_domain_is_too_small_nothing_of_the_others_is_held_out(tmp_path, evaluated, lines):
    parts = {
        name: folder(tmp_path / name, [f"{number}.png" for number in range(count)])
        for name, count in (("A", 60), ("B", 3))
    }
    training, held = split(parts, None, ALONE, is_evaluated=evaluated)
    assert held == {} and [len(each) for each in training.values()] == [60, 3]
    remarks = [line for each in training.values() for line in each.remarks]
    assert len(remarks) == lines and all(
        line == f"no evaluations: --holdout 0.05: 0 of 3 samples of {tmp_path / 'B'} would be held out"
        for line in remarks
    )
    with pytest.raises(UserError, match="--holdout 0.05: 0 of 3 samples"):
        split(parts, 0.05, ALONE, is_evaluated=True)
    whole, held = split({"A": parts["A"], "B": parts["A"]}, None, ALONE, is_evaluated=True)
    assert len(held["B"]) > 0 and len(whole["A"]) + len(held["A"]) == 60
