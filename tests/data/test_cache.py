"""The caches in memory and on the disk give the same images; damaged entries are made again."""

import logging
import os
import shutil
import threading

import numpy as np
import PIL.Image
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import Peers
from hvdgan.data import cached, open_source
from packed import write_images

ALL = np.arange(10)


@pytest.fixture
def source(tmp_path):
    return open_source(Config(data=str(write_images(tmp_path / "images")), image_size=8, fit="crop"))


def count_fetches(source):
    """The indices that are read from now on."""
    fetched, fetch_batch = [], source.fetch_batch

    def noted(indices):
        fetched.extend(indices.tolist())
        return fetch_batch(indices)

    source.fetch_batch = noted
    return fetched


def file_of(folder):
    return folder / f"{os.uname().nodename}.images"


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_each_image_is_read_once(source, tmp_path, kind):
    expected = source.fetch_batch(ALL)
    fetched = count_fetches(source)
    kept = cached(source, kind, tmp_path / "cache")
    for indices in ([3, 1], [1, 3, 4], ALL, ALL[::-1], ALL):
        np.testing.assert_array_equal(kept.fetch_batch(np.array(indices)), expected[np.array(indices)])
    np.testing.assert_array_equal(kept.fetch(7), expected[7])
    assert sorted(fetched) == ALL.tolist()
    # What training asks of a source is what it was.
    assert (kept.fingerprint, kept.record_shape, kept.total) == (source.fingerprint, source.record_shape, source.total)
    np.testing.assert_array_equal(kept.labels, source.labels)
    assert [kept.key(index) for index in ALL] == [source.key(index) for index in ALL]


def test_pictures_that_were_written_over_under_their_names_are_read_again(source, tmp_path):
    cached(source, "disk", tmp_path / "cache").fetch_batch(ALL)
    for path in (tmp_path / "images").rglob("*.png"):
        pixels = 255 - np.asarray(PIL.Image.open(path))
        PIL.Image.fromarray(pixels).save(path)
    again = open_source(Config(data=str(tmp_path / "images"), image_size=8, fit="crop"))
    assert again.fingerprint == source.fingerprint
    found = cached(again, "disk", tmp_path / "cache").fetch_batch(ALL)
    np.testing.assert_array_equal(found, again.fetch_batch(ALL))


def test_without_a_cache_and_for_what_is_in_memory_nothing_is_kept(source, tmp_path):
    digits = open_source(Config(data="digits", image_size=8, fit="crop"))
    assert cached(source, "none", tmp_path / "cache") is source
    assert cached(digits, "memory", tmp_path / "cache") is digits is cached(digits, "disk", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_the_file_is_found_again_by_the_same_data_alone(source, tmp_path):
    expected = cached(source, "disk", tmp_path / "cache").fetch_batch(ALL)
    again = open_source(Config(data=source.name, image_size=8, fit="crop"))
    fetched = count_fetches(again)
    np.testing.assert_array_equal(cached(again, "disk", tmp_path / "cache").fetch_batch(ALL), expected)
    assert fetched == []
    grey = open_source(Config(data=source.name, image_size=8, fit="crop", channels=1))
    expected = grey.fetch_batch(ALL)
    np.testing.assert_array_equal(cached(grey, "disk", tmp_path / "cache").fetch_batch(ALL), expected)


@pytest.mark.parametrize("damage", ["bit", "cut", "gone"])
def test_what_is_damaged_is_read_again(source, tmp_path, damage):
    kept = cached(source, "disk", tmp_path / "cache")
    expected = kept.fetch_batch(ALL)
    file = file_of(tmp_path / "cache")
    size = 16 + 8 * 8 * 3
    if damage == "bit":
        with file.open("r+b") as opened:
            opened.seek(4 * size + 50)
            byte = opened.read(1)[0]
            opened.seek(-1, os.SEEK_CUR)
            opened.write(bytes([byte ^ 1]))
    elif damage == "cut":
        os.truncate(file, 9 * size + 5)
    else:
        shutil.rmtree(tmp_path / "cache")
        kept = cached(source, "disk", tmp_path / "cache")
    fetched = count_fetches(source)
    np.testing.assert_array_equal(kept.fetch_batch(ALL), expected)
    assert fetched == {"bit": [4], "cut": [9], "gone": ALL.tolist()}[damage]


def test_ranks_of_a_host_share_the_file(source, tmp_path):
    """Two at once, each of which writes what it reads first."""
    expected = source.fetch_batch(ALL)
    ranks = [cached(source, "disk", tmp_path / "cache") for _ in range(2)]
    results = {}

    def read(rank):
        order = ALL if rank == 0 else ALL[::-1]
        results[rank] = np.stack([ranks[rank].fetch(int(index)) for index in order])

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    np.testing.assert_array_equal(results[0], expected)
    np.testing.assert_array_equal(results[1], expected[::-1])
    fetched = count_fetches(source)
    ranks[0].fetch_batch(ALL)
    assert fetched == []


def test_a_full_disk_is_reported_once_and_the_images_still_come(source, tmp_path, caplog):
    (tmp_path / "cache").mkdir()
    file_of(tmp_path / "cache").symlink_to("/dev/full")  # which has no space left on device
    kept = cached(source, "disk", tmp_path / "cache")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            np.testing.assert_array_equal(kept.fetch_batch(ALL), source.fetch_batch(ALL))
    (record,) = caplog.records
    assert "--pipeline.cache disk: " in record.getMessage() and "No space left on device" in record.getMessage()


def test_what_does_not_fit_into_memory_is_refused_on_every_rank(source, tmp_path, monkeypatch):
    class Four(Peers):
        rank, size, local_rank, local_size = 1, 4, 1, 4

        def gather(self, value, name):
            succeeded = [None, None]  # a result and an error
            return [succeeded, value, succeeded, succeeded]

    needed = 4 * 10 * 8 * 8 * 3
    monkeypatch.setattr("hvdgan.data.cache.free_memory", lambda: needed)
    with pytest.raises(
        UserError, match=r"--pipeline.cache memory: 10 samples of \(8, 8, 3\) uint8 take .* for the 4 rank\(s\)"
    ):
        cached(source, "memory", tmp_path, Four())
    monkeypatch.setattr("hvdgan.data.cache.free_memory", lambda: 2 * needed)
    cached(source, "memory", tmp_path, Four())
