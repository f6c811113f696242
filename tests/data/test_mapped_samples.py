"""What networks see of arrays: exact values on any number of ranks, outliers named at once, and bad samples by name.

The cache in memory gives the same samples, and reads each once. Means and deviations are over the finite samples to
train on alone. Modules: data.samples, data.statistics"""

import numpy as np
import pytest

from hvdgan.data import BadImage, cached, hold_out, open_source, statistics
from hvdgan.data.statistics import with_statistics
from hvdgan.errors.shared_errors import ALONE
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig
from packed import write_images
from reading import batches_of
from thread_ranks import Threads


def opened(path, array, values="standard"):
    np.savez(path / "a.npz", x=array)
    return open_source(Config(data=str(path / "a.npz"), arrays=ArrayConfig(values=values)))


def test_a_sample_that_cannot_be_mapped_is_a_bad_one(tmp_path):
    array, reason = np.ones((17, 4, 6, 2), np.float32), "channel 0 at (1, 2) is -5, which its map log1p turns into nan"
    array[5, 1, 2, 0] = -5
    source = opened(tmp_path, array, "log1p")
    source = source.mapped(source.values)
    with pytest.raises(BadImage) as caught:
        source.fetch_batch(np.array([3, 5, 7]))
    assert caught.value.bad_file == (f"{tmp_path}/a.npz:x[5]", reason)
    np.testing.assert_allclose(source.fetch_batch(np.array([3, 7]))["images"], np.log(2), rtol=1e-6)
    # Training leaves it out, by name, and continues.
    with batches_of(source, global_batch_size=17, max_bad_fraction=0.1) as batches:
        assert 5 not in next(batches)["index"]
        assert [bad.reason for bad in batches.bad_files] == [reason]


def test_numbers_outside_of_a_range_are_named_at_the_start_and_kept(tmp_path):
    array = np.zeros((17, 4, 6, 2), np.float32)
    array[5, 0, 0] = 40, 9
    np.savez(tmp_path / "a.npz", x=array, energy=np.arange(17.0))
    settings = {"values": "power:0.5+range:0,6", "conditions": ("energy",), "condition_values": "range:1,16"}
    source = open_source(Config(data=str(tmp_path / "a.npz"), arrays=ArrayConfig(**settings)))
    source = source.mapped(source.values)
    np.testing.assert_allclose(source.fetch(5)["images"][0, 0], [40**0.5 / 3 - 1, 0], rtol=1e-6)
    of = "lie outside of the declared range, and are not clipped"
    told = [f"--values: in 17 samples looked at, numbers of 0 {of}", f"conditions: numbers of energy {of}"]
    assert source.remarks == told


ALL = np.arange(10)


def test_each_image_is_read_once_into_the_cache(monkeypatch, tmp_path):
    source = open_source(Config(data=str(write_images(tmp_path / "images")), image_size=8, fit="crop"))
    expected, fetched, read = source.fetch_batch(ALL)["images"], [], source.images.read

    def noted(indices):
        fetched.extend(indices.tolist())
        return read(indices)

    monkeypatch.setattr(source.images, "read", noted)
    kept = cached(source, "memory")
    for indices in ([3, 1], [1, 3, 4], ALL, ALL[::-1], ALL):
        np.testing.assert_array_equal(kept.fetch_batch(np.array(indices))["images"], expected[np.array(indices)])
    assert sorted(fetched) == ALL.tolist()
    assert [kept.digest(index) for index in ALL] == [source.digest(index) for index in ALL]


FIELDS = np.random.default_rng(0).normal((3, -1000), (1e-3, 50), (1203, 4, 5, 2)).astype(np.float32)


@pytest.fixture
def small_blocks(monkeypatch):
    """So that there are many of them: 25 samples each."""
    monkeypatch.setattr(statistics, "BLOCK_BYTES", 25 * 4 * 5 * 2 * 4)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("values", ["standard", "power:0.5+standard+power:2+standard"])
def test_any_number_of_ranks_has_the_same_bits(tmp_path, values):
    source = opened(tmp_path, FIELDS, values)
    alone = with_statistics(source, ALONE)
    assert not alone.images.lacks_statistics
    if values == "standard":
        (step,) = alone.images.chains[0]
        wide = FIELDS.astype(np.float64).reshape(-1, 2)
        np.testing.assert_allclose(step.means, wide.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(step.deviations, wide.std(axis=0), rtol=1e-10)
    for size in (2, 3):
        found = {}

        def work(peers, found=found):
            found[peers.rank] = with_statistics(source, peers)

        assert Threads(size).run(work) == [None] * size
        assert [*found.values()] == [alone] * size  # floats are equal to the bit


@pytest.mark.usefixtures("small_blocks")
def test_neither_held_out_samples_nor_those_that_are_not_finite_count(tmp_path):
    array = FIELDS.copy()
    held = hold_out(opened(tmp_path, array), 0.2)[1].samples
    array[held.indices] += 1e4
    array[100, 1, 1, 0], array[500, 0, 0, 1] = np.nan, np.inf
    training, _ = hold_out(opened(tmp_path, array), 0.2)
    (step,) = with_statistics(training, ALONE).images.chains[0]
    others = np.setdiff1d(np.arange(len(array)), [*held.indices, 100, 500])
    np.testing.assert_allclose(step.means, array[others].astype(np.float64).mean(axis=(0, 1, 2)), rtol=1e-12)
