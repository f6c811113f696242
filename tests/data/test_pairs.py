"""Pairs: the input that belongs to each image, for every kind of source."""

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.data import open_source
from reading import batches_of


def opened(data, *, paired=True, **changes):
    return open_source(Config(data=str(data), **{"image_size": 8, "fit": "crop", **changes}), paired=paired)


def write(path, value, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, value).save(path)


def values_of(source):
    """Input and image of each pair, which must be evenly coloured, by their first channels."""
    pairs = source.fetch_batch(np.arange(len(source)))
    assert (pairs == pairs[:, :1, :1]).all()
    return [(int(pair[0, 0, 0]), int(pair[0, 0, source.layout.shape[-1]])) for pair in pairs]


def test_partners_have_the_same_path_and_a_and_b_are_else_classes(tmp_path):
    for number, name in enumerate(("z", "sub/a", "m")):
        write(tmp_path / "A" / f"{name}.png", number)
        write(tmp_path / "B" / f"{name}.{'bmp' if number else 'PNG'}", 100 + number)
    source = opened(tmp_path, channels=1)
    assert source.paired and source.layout.shape[-1] == 1 and source.record_shape == (8, 8, 2)
    assert values_of(source) == [(2, 102), (1, 101), (0, 100)]  # m, sub/a, z
    assert source.labels is None and source.bad_files == []
    single = opened(tmp_path, paired=False)
    assert single.class_names == ["A", "B"] and [single.fetch(index).max() for index in range(6)][3:] == [102, 101, 100]


def test_files_without_a_partner_are_named(tmp_path):
    for number in range(3):
        write(tmp_path / "A" / f"{number}.png", number)
        write(tmp_path / "B" / f"{number + 1}.png", number + 1)
    write(tmp_path / "A" / "1.bmp", 9)
    source = opened(tmp_path, max_bad_fraction=0.6)
    assert [pair[0] for pair in values_of(source)] == [9, 2]
    reasons = {"A/0.png": "no partner in B", "B/3.png": "no partner in A", "A/1.png": "A/1.bmp has the same name"}
    assert dict(source.bad_files) == reasons
    with pytest.raises(UserError, match=r"3 of 7 files have no partner: A/1\.png .*, A/0\.png \(no partner in B\)"):
        opened(tmp_path)


def test_a_broken_file_takes_its_partner_out_and_so_does_one_of_another_size(tmp_path):
    """Which would not be cropped equally."""
    for side in "AB":
        for number in range(4):
            write(tmp_path / side / f"{number}.png", number, size=(8, 16) if number == 3 and side == "A" else (16, 8))
    (tmp_path / "B" / "1.png").write_bytes(b"")
    with batches_of(opened(tmp_path), global_batch_size=4, max_bad_fraction=0.5) as batches:
        assert set(next(batches)["index"].numpy()) == {0, 2}
        sizes = "8 x 16 pixels, and its partner B/3.png has 16 x 8"
        assert sorted(batches.bad_files) == [("A/3.png", sizes), ("B/1.png", "empty file")]
