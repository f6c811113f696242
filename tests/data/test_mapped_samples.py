"""What networks see of arrays: exact values on any number of ranks, outliers named at once, and bad samples by name.

The cache in memory gives the same samples, and reads each once.
Modules: data.samples"""

import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.shared_errors import ALONE
from hvdgan.data import BadImage, cached, open_source
from hvdgan.data.statistics import with_statistics
from packed import write_images
from reading import batches_of


def seen(path, array, values="none", **settings):
    np.savez(path / "a.npz", x=array, **settings)
    source = open_source(Config(data=str(path / "a.npz"), arrays=ArrayConfig(values=values)))
    return source.mapped(with_statistics(source, ALONE))


def test_a_sample_that_cannot_be_mapped_is_a_bad_one(tmp_path):
    array, reason = np.ones((17, 4, 6, 2), np.float32), "numbers from -5 to 1 cannot be mapped by log1p"
    array[5, 1, 2, 0] = -5
    source = seen(tmp_path, array, "log1p")
    with pytest.raises(BadImage) as caught:
        source.fetch_batch(np.array([3, 5, 7]))
    assert caught.value.bad_file == (f"{tmp_path}/a.npz:x[5]", reason)
    np.testing.assert_allclose(source.fetch_batch(np.array([3, 7])), np.log(2), rtol=1e-6)
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
    np.testing.assert_allclose(source.fetch(5)[0, 0], [40**0.5 / 3 - 1, 0], rtol=1e-6)
    of = "lie outside of the declared range, and are not clipped"
    told = [f"--values: in 17 samples looked at, numbers of 0 {of}", f"conditions: numbers of energy {of}"]
    assert source.remarks == told


ALL = np.arange(10)


def test_each_image_is_read_once_into_the_cache(monkeypatch, tmp_path):
    source = open_source(Config(data=str(write_images(tmp_path / "images")), image_size=8, fit="crop"))
    expected, fetched, read = source.fetch_batch(ALL), [], source.images.read

    def noted(indices):
        fetched.extend(indices.tolist())
        return read(indices)

    monkeypatch.setattr(source.images, "read", noted)
    kept = cached(source, "memory")
    for indices in ([3, 1], [1, 3, 4], ALL, ALL[::-1], ALL):
        np.testing.assert_array_equal(kept.fetch_batch(np.array(indices)), expected[np.array(indices)])
    assert sorted(fetched) == ALL.tolist()
    assert [kept.digest(index) for index in ALL] == [source.digest(index) for index in ALL]
