"""--balance: each class equally often, or each sample as often as a file says; a pure function of seed and place.
Modules: data.order"""

import numpy as np
import pytest

from hvdgan.data import open_source
from hvdgan.data.order import balanced, ends_of, sample_indices
from hvdgan.errors import UserError
from hvdgan.settings.config import Config
from reading import batches_of

N = 20


def epochs(weights, count=50):
    found = sample_indices(3, 0, count * N, N, None if weights is None else ends_of(np.asarray(weights, float)))
    return found.reshape(count, N)


def test_each_epoch_has_each_sample_its_share():
    weights = np.array([0, 0, 1, 2, 0.5, *[1] * 14, 0])
    counts = np.array([np.bincount(epoch, minlength=N) for epoch in epochs(weights)])
    share = N * weights / weights.sum()
    assert (counts >= np.floor(share)).all() and (counts <= np.ceil(share)).all()
    np.testing.assert_allclose(counts.mean(axis=0), share, atol=0.1)


def read(source, batches, **rank):
    """The classes and places of the samples that a rank reads of batches of 12."""
    with batches_of(source, seed=1, global_batch_size=12, **rank) as reading:
        found = [next(reading) for _ in range(batches)]
    return tuple(np.array([batch[name].numpy() for batch in found]) for name in ("labels", "index"))


@pytest.fixture
def uneven():
    """Ten of each class but the first, of which there are 200."""
    source = open_source(Config())
    return source.chosen(np.concatenate([np.flatnonzero(source.labels == n)[: 10 if n else 150] for n in range(10)]))


def test_each_class_comes_equally_often_on_any_number_of_ranks_and_after_a_resume(uneven):
    source = balanced(uneven, "labels")
    labels, whole = read(source, 20)
    assert (np.bincount(labels.ravel()) == 24).all()
    for size in (2, 3):
        parts = [read(source, 2, rank=rank, size=size, start_step=3)[1] for rank in range(size)]
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole[3:5])
    assert source.fingerprint != uneven.fingerprint


def test_a_file_gives_the_frequency_of_each_sample_of_the_data(uneven, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weights = np.zeros(uneven.images.shape[0])
    weights[uneven.numbers(np.arange(3))] = [1, 2, 1]
    np.save("weights.npy", weights)
    _, index = read(balanced(uneven, "weights.npy"), 40)
    assert np.bincount(index.ravel()).tolist() == [120, 240, 120]


@pytest.mark.parametrize("weights", [np.ones(5), -np.ones(1797)], ids=repr)
def test_other_files_are_refused(uneven, tmp_path, weights):
    np.save(tmp_path / "weights.npy", weights)
    with pytest.raises(UserError, match=r"expected \(1797,\) finite numbers from 0 up"):
        balanced(uneven, str(tmp_path / "weights.npy"))
