"""Batches: any number of ranks reads the samples of one, also with broken files and after resuming.

Their order is a function of seed and step. Data of several domains have one for each.
Modules: data.order, data.domains"""

import itertools
import re

import numpy as np
import pytest
from PIL import Image

import reading
from hvdgan.data import open_source
from hvdgan.data.domains import joined, seed_of, settings_of
from hvdgan.data.order import sample_indices
from hvdgan.errors import RunError, UserError
from hvdgan.settings.config import Config
from reading import numbered

G = 12  # divisible by 1, 2, 3 and 4 ranks


def batches_of(source, **changes):
    options = {"seed": 1, "global_batch_size": G, "threads": 3, "prefetch": 2, "max_bad_fraction": 1.0}
    return reading.batches_of(source, **(options | changes))


def first(steps, source, **changes):
    """The first batches, joined: a dict of arrays."""
    with batches_of(source, **changes) as batches:
        taken = [{name: value.numpy() for name, value in batch.items()} for batch in itertools.islice(batches, steps)]
    return {name: np.stack([batch[name] for batch in taken]) for name in taken[0]}


def together(steps, source, size, **changes):
    """The global batches, each put together from its ranks' slices."""
    ranks = [first(steps, source, rank=rank, size=size, **changes) for rank in range(size)]
    return {name: np.concatenate([rank[name] for rank in ranks], axis=1) for name in ranks[0]}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_another_batch_size_continues_at_the_next_sample():
    """As --allow-changed global_batch_size leaves it: from a position that is not a whole number of batches."""
    source = numbered(200)
    seen = together(4, source, 2, global_batch_size=8, position=18)["index"]
    np.testing.assert_array_equal(seen.reshape(-1), sample_indices(1, 18, 32, 200))
    source.images.taken.clear()
    first(2, source, start_step=5, rank=1, size=2)  # it reads nothing that came before, nor the other rank's samples
    others = [sample_indices(1, 0, 5 * G, 200), *(sample_indices(1, G * step, G // 2, 200) for step in (5, 6))]
    assert source.images.taken and not set(source.images.taken) & set(np.concatenate(others).tolist())


def test_batches_follow_the_order_and_broken_images_are_replaced_by_the_next_good_ones():
    """With their labels; and they are not tried again every epoch."""
    source = numbered(9, broken=(4, 5, 8))
    with batches_of(source, threads=1) as batches:
        taken = [next(batches) for _ in range(12)]
        assert sorted(batches.bad_files) == [("image 4", "broken"), ("image 5", "broken"), ("image 8", "broken")]
    got = {name: np.stack([each[name] for each in taken]) for name in ("images", "index", "labels")}
    wanted = np.stack([sample_indices(1, G * step, G, 9) for step in range(12)])
    np.testing.assert_array_equal(got["index"], np.array([0, 1, 2, 3, 6, 6, 6, 7, 0])[wanted])
    np.testing.assert_array_equal(got["images"], np.broadcast_to(got["index"][..., None, None, None], (12, G, 2, 2, 1)))
    np.testing.assert_array_equal(got["labels"], got["index"] * 2)
    assert got["index"].dtype == np.int64 and got["images"].dtype == np.uint8
    assert 1 <= source.images.taken.count(4) <= 2 < source.images.taken.count(3)


def test_a_broken_image_is_never_replaced_by_one_that_weights_leave_out():
    weights = np.array([1, 1, 1, 0, 1, 0, 1, 1, 0], float)
    source = numbered(9, broken=(2, 7)).replace(weights=weights)
    index = first(20, source)["index"]
    assert {*index.ravel().tolist()} == {0, 1, 4, 6}
    plain = first(20, source.replace(images=numbered(9).images))["index"]
    np.testing.assert_array_equal(index, np.array([0, 1, 4, 0, 4, 0, 6, 0, 0])[plain])


def test_too_many_broken_images_stop_the_run(capfd):
    source = numbered(90, broken=range(0, 90, 3), bad_files=[("found earlier.png", "empty file")] * 10)
    with batches_of(source, max_bad_fraction=0.12) as batches, pytest.raises(RunError) as caught:
        for _ in range(100):
            next(batches)
    # 12 of 100 are allowed.
    message = str(caught.value)
    assert type(caught.value) is RunError and caught.value.exit_code == 1
    # Other threads, which read ahead, may have found more by then.
    counted = re.match(r"--data numbered: (\d+) of 100 samples cannot be read: found earlier\.png", message)
    assert counted and 13 <= int(counted[1]) <= 40
    assert "--max-bad-fraction (now 0.12), such as 0.1" in message and "\n" not in message
    assert "Traceback" not in capfd.readouterr().err
    with batches_of(numbered(5, broken=range(5))) as batches, pytest.raises(RunError, match="none of its 5 samples"):
        next(batches)


@pytest.mark.parametrize(("total", "batch"), [(10, 4), (5, 64), (1, 3)])
def test_every_epoch_holds_each_image_once_in_another_order(total, batch):
    found = [sample_indices(seed, step * batch, batch, total) for seed in (0, 1) for step in range(6 * total)]
    assert found[0].dtype == np.int64 and found[0].shape == (batch,)
    epochs = np.concatenate(found).reshape(-1, total)
    assert (np.sort(epochs, axis=1) == np.arange(total)).all()
    assert total < 10 or len({*map(tuple, epochs)}) == len(epochs)


def test_the_order_is_the_one_of_earlier_versions():
    # A run that resumes after an upgrade of NumPy or of hvdgan must see the images that it would have seen.
    assert sample_indices(0, 0, 12, 10).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7, 5, 3]
    assert sample_indices(2**31 - 1, 12 * 10**9, 12, 10).tolist() == [7, 6, 1, 8, 9, 0, 2, 3, 4, 5, 2, 3]


@pytest.mark.parametrize("counts", [(9, 5), (5, 9)])
def test_each_domain_has_its_own_order_and_epochs_for_any_number_of_ranks_also_after_resuming(counts):
    source = joined(dict(zip("AB", map(numbered, counts), strict=True)))
    alone = first(5, source)
    assert {"images", "labels", "index", "B/images", "B/labels", "B/index"} <= alone.keys()
    for number, (name, count) in enumerate(zip(("index", "B/index"), counts, strict=True)):
        np.testing.assert_array_equal(alone[name].ravel(), sample_indices(seed_of(1, number), 0, 5 * G, count))
        np.testing.assert_array_equal(
            alone[name][..., None, None, None] + np.zeros((2, 2, 1)), alone[name.replace("index", "images")]
        )
    np.testing.assert_array_equal(alone["B/labels"], alone["B/index"] * 2)
    for size, begin in ((2, 0), (3, 0), (3, 2)):
        rest = {name: values[begin:] for name, values in alone.items()}
        assert_equal(rest, together(5 - begin, source, size, start_step=begin))


DOMAINS = ("A", "B")


def test_folders_of_a_folder_and_arrays_of_a_file_are_the_domains(tmp_path):
    for folder in ("trainA", "trainB", "testA"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / folder / "a.png")
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
