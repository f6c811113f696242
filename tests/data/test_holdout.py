"""Which images are held out."""

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE
from hvdgan.data import hold_out, open_source
from hvdgan.data.holdout import split
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


def held_names(source):
    held = hold_out(source, 0.2)[1].samples
    return {held.key(index) for index in range(len(held))}


def test_fractions_of_none_and_of_all_are_refused_and_the_default_of_few_images_holds_out_none(tmp_path):
    for fraction in (1e-9, 0.999999999):
        with pytest.raises(UserError, match="--holdout .* of 1797 images of digits would be held out"):
            digits(fraction)
    three = folder(tmp_path / "few", ["a.png", "b.png", "c.png"])
    assert split(three, None, ALONE, is_evaluated=True) == (three, None)
