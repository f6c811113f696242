"""Two ranks make the index of one TFRecord file together."""

import gzip
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from hvdgan.cli.config import Config, TFRecordConfig
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.shared_errors import ALONE
from hvdgan.data import open_source
from hvdgan.data.formats.tf_example import example
from hvdgan.data.formats.tfrecord import framed

RNG = np.random.default_rng(0)


def shared_folder(ranks):
    return Path(ranks.gather(tempfile.mkdtemp() if ranks.is_root else "", "folder")[0])


def write(path, ranks, contents):
    """Records with an image of raw bytes; rank 0 writes."""
    if ranks.is_root:
        path.write_bytes(b"".join(framed(example({"image": one, "label": i})) for i, one in enumerate(contents)))
    ranks.gather(None, "written")
    return path


def opened(path, peers):
    settings = {"tfrecord": TFRecordConfig(label="label", shape="8,8,3")}
    return open_source(Config(data=str(path), image_size=8, **settings), peers=peers)


@pytest.fixture
def small_ranges(monkeypatch):
    from hvdgan.data.formats import tfrecord_index

    monkeypatch.setattr(tfrecord_index, "SMALLEST_RANGE", 4096)


def test_each_looks_at_a_part(ranks, monkeypatch, small_ranges):
    path = write(shared_folder(ranks) / "a.tfrecord", ranks, [RNG.bytes(192) for _ in range(1000)])
    reads, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *where: reads.append(where) or pread(*where))
    source = opened(path, ranks)
    mine = len(reads)
    reads.clear()
    whole = opened(path, ALONE)
    assert 0.3 * len(reads) < mine < 0.7 * len(reads)
    assert source.fingerprint == whole.fingerprint
    assert source.labels.tolist() == list(range(1000))


def test_records_within_images_mislead_nobody(ranks, small_ranges):
    """Each image is a file of records itself."""
    inner = b"".join(framed(bytes(4)) for _ in range(9)) + bytes(12)
    assert len(inner) == 192
    path = write(shared_folder(ranks) / "a.tfrecord", ranks, [inner] * 500)
    source, whole = opened(path, ranks), opened(path, ALONE)
    assert source.fingerprint == whole.fingerprint and len(source) == 500


def test_a_record_longer_than_a_range(ranks, small_ranges):
    contents = [RNG.bytes(192), RNG.bytes(50_000), bytes(70_000), RNG.bytes(192)]
    path = write(shared_folder(ranks) / "a.tfrecord", ranks, contents)
    source, whole = opened(path, ranks), opened(path, ALONE)
    assert source.fingerprint == whole.fingerprint and len(source) == 4


@pytest.mark.parametrize("level", [0, 1])
def test_a_file_compressed_as_a_whole_is_not_divided(ranks, small_ranges, level):
    """At level 0 the records stand in it as they are."""
    path = write(shared_folder(ranks) / "a.tfrecord", ranks, [RNG.bytes(192) for _ in range(1000)])
    plain = opened(path, ALONE)
    sample = plain.fetch(700)
    ranks.gather(None, "read")
    if ranks.is_root:
        path.write_bytes(gzip.compress(path.read_bytes(), level))
    ranks.gather(None, "compressed")
    source = opened(path, ranks)
    assert source.fingerprint == plain.fingerprint and source.labels.tolist() == list(range(1000))
    np.testing.assert_array_equal(source.fetch(700), sample)


def test_each_says_that_the_library_is_missing_on_one(ranks, monkeypatch):
    path = write(shared_folder(ranks) / "a.tfrecord", ranks, [RNG.bytes(192) for _ in range(9)])
    if ranks.is_root:
        path.write_bytes(gzip.compress(path.read_bytes()))
    else:
        monkeypatch.setitem(sys.modules, "indexed_gzip", None)
    ranks.gather(None, "compressed")
    with pytest.raises((UserError, RunError), match=r"pip install 'hvdgan\[gzip\]'"):
        opened(path, ranks)


@pytest.mark.parametrize("cut", [1, 100_000])
def test_a_cut_file_is_named_with_its_record_as_by_one_rank(ranks, small_ranges, cut):
    path = write(shared_folder(ranks) / "a.tfrecord", ranks, [RNG.bytes(192) for _ in range(1000)])
    if ranks.is_root:
        os.truncate(path, path.stat().st_size - cut)
    ranks.gather(None, "cut")
    said = []
    for peers in (ranks, ALONE):
        with pytest.raises(UserError, match="record .*; expected a whole file of TFRecords") as caught:
            opened(path, peers)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_two_ranks_read_arrays_and_conditions_as_one_does(ranks, small_ranges):
    path = write(shared_folder(ranks) / "a.tfrecord", ranks, [RNG.bytes(192) for _ in range(40)])
    tfrecord = TFRecordConfig(shape="4,4,12", dtype="uint8", label="label")
    arrays = ArrayConfig(values="none", conditions=("label",), condition_values="none")
    config = Config(data=str(path), tfrecord=tfrecord, arrays=arrays)
    together, alone = open_source(config, peers=ranks), open_source(config)
    assert together.fingerprint == alone.fingerprint and together.layout.shape == (4, 4, 12)
    assert together.conditions[:, 0].tolist() == together.labels.tolist() == list(range(40))
    assert (together.fetch_batch(np.arange(40)) == alone.fetch_batch(np.arange(40))).all()
