"""The cache in memory gives the same samples, reads each once, and is refused where it does not fit."""

import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import Peers
from hvdgan.data import BadImage, cached, open_source
from packed import write_images

ALL = np.arange(10)


@pytest.fixture
def source(tmp_path):
    return open_source(Config(data=str(write_images(tmp_path / "images")), image_size=8, fit="crop"))


def test_each_image_is_read_once(source, monkeypatch):
    expected, fetched, read = source.fetch_batch(ALL), [], source.images.read

    def noted(indices):
        fetched.extend(indices.tolist())
        return read(indices)

    monkeypatch.setattr(source.images, "read", noted)
    kept = cached(source, "memory")
    for indices in ([3, 1], [1, 3, 4], ALL, ALL[::-1], ALL):
        np.testing.assert_array_equal(kept.fetch_batch(np.array(indices)), expected[np.array(indices)])
    np.testing.assert_array_equal(kept.fetch(7), expected[7])
    assert sorted(fetched) == ALL.tolist()
    # What training asks of a source is what it was.
    assert (kept.fingerprint, kept.record_shape, kept.total) == (source.fingerprint, source.record_shape, source.total)
    np.testing.assert_array_equal(kept.labels, source.labels)
    assert [kept.key(index) for index in ALL] == [source.key(index) for index in ALL]
    assert [kept.digest(index) for index in ALL] == [source.digest(index) for index in ALL]


def test_a_broken_image_is_not_kept(source, tmp_path):
    (tmp_path / "images" / "class 0" / "000.png").write_bytes(b"")
    kept = cached(source, "memory")
    for _ in range(2):
        with pytest.raises(BadImage):
            kept.fetch_batch(ALL)
    np.testing.assert_array_equal(kept.fetch_batch(ALL[1:]), source.fetch_batch(ALL[1:]))


def test_without_a_cache_and_for_what_is_in_memory_nothing_is_kept(source):
    digits = open_source(Config(data="digits", image_size=8, fit="crop"))
    assert cached(source, "none") is source and cached(digits, "memory") is digits


def test_what_does_not_fit_into_memory_is_refused_on_every_rank(source, monkeypatch):
    class Four(Peers):
        rank, size, local_rank, local_size = 1, 4, 1, 4

        def gather(self, value, name):
            succeeded = [None, None]  # a result and an error
            return [succeeded, value, succeeded, succeeded]

    needed = 4 * 10 * 8 * 8 * 3
    monkeypatch.setattr("hvdgan.cli.hosts.free_memory", lambda: needed)
    with pytest.raises(
        UserError, match=r"--pipeline.cache memory: 10 samples of \(8, 8, 3\) uint8 take .* for the 4 rank\(s\)"
    ):
        cached(source, "memory", Four())
    monkeypatch.setattr("hvdgan.cli.hosts.free_memory", lambda: 2 * needed)
    cached(source, "memory", Four())
