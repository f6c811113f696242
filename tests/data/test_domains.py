"""Data of several domains: where each comes from, and that each has its own order, the same for any number of ranks."""

import itertools

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.data import open_source
from hvdgan.data.domains import joined, seed_of, settings_of
from hvdgan.data.order import sample_indices
from reading import batches_of, numbered

G = 12
DOMAINS = ("A", "B")


def both(a=9, b=5, **others):
    return joined({"A": numbered(a), "B": numbered(b, **others)})


def first(steps, source, **changes):
    """The first batches, joined: a dict of arrays."""
    with batches_of(source, seed=1, global_batch_size=G, max_bad_fraction=1.0, **changes) as batches:
        taken = [{name: value.numpy() for name, value in batch.items()} for batch in itertools.islice(batches, steps)]
    return {name: np.stack([batch[name] for batch in taken]) for name in taken[0]}


def test_each_domain_has_its_own_order_and_epochs_for_any_number_of_ranks_also_after_resuming():
    alone = first(5, both())
    assert {"images", "labels", "index", "B/images", "B/labels", "B/index"} <= alone.keys()
    for name, number, count in (("index", 0, 9), ("B/index", 1, 5)):
        np.testing.assert_array_equal(alone[name].ravel(), sample_indices(seed_of(1, number), 0, 5 * G, count))
        np.testing.assert_array_equal(
            alone[name][..., None, None, None] + np.zeros((2, 2, 1)), alone[name.replace("index", "images")]
        )
    np.testing.assert_array_equal(alone["B/labels"], alone["B/index"] * 2)
    for size, begin in ((2, 0), (3, 0), (3, 2)):
        ranks = [first(5 - begin, both(), rank=rank, size=size, start_step=begin) for rank in range(size)]
        for name, expected in alone.items():
            found = np.concatenate([rank[name] for rank in ranks], axis=1)
            np.testing.assert_array_equal(found, expected[begin:], err_msg=name)


def picture(path, size=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size, 3), 7, np.uint8)).save(path)


def test_folders_of_a_folder_and_arrays_of_a_file_are_the_domains(tmp_path):
    for folder in ("trainA", "trainB", "testA"):
        picture(tmp_path / folder / "a.png")
    found = settings_of(Config(data=str(tmp_path)), DOMAINS)
    assert {name: each.data for name, each in found.items()} == {name: f"{tmp_path}/train{name}" for name in DOMAINS}
    np.savez(tmp_path / "both.npz", A=np.zeros((3, 8, 8, 3), np.uint8), B=np.zeros((4, 8, 8, 3), np.uint8))
    found = settings_of(Config(data=str(tmp_path / "both.npz")), DOMAINS)
    assert [len(open_source(each)) for each in found.values()] == [3, 4]


@pytest.mark.parametrize(
    ("data", "others", "domains", "said"),
    [
        ("digits", (), DOMAINS, "--data digits: has no A; the recipe takes samples of A and B"),
        ("digits", ("synthetic",), (), "--data digits, synthetic: the recipe has one domain; give --data once"),
    ],
)
def test_other_data_are_refused_in_a_line(data, others, domains, said):
    with pytest.raises(UserError) as caught:
        settings_of(Config(data=data, other_data=others), domains)
    assert said in str(caught.value) and "\n" not in str(caught.value)
