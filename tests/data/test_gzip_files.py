"""TFRecord files that GZIP has compressed as a whole: the same samples as in plain files, and errors in them."""

import gzip
import os
import sys
import zlib

import numpy as np
import pytest
import tensorflow as tf

from arrays_on_disk import arrays, wrong_reads_of_threads
from hvdgan.cli.config import Config, TFRecordConfig
from hvdgan.cli.errors import RunError, UserError
from hvdgan.data import open_source
from hvdgan.data.base import gzip_files
from hvdgan.data.base.scan_cache import ScanCache
from hvdgan.data.formats.tf_example import example
from hvdgan.data.formats.tfrecord import framed
from tfrecord_files import IMAGES, png, write

GZIP = tf.io.TFRecordOptions(compression_type="GZIP")
RANDOM = np.random.default_rng(0)
FIELDS = RANDOM.standard_normal((60, 40, 40, 8)).astype(np.float32)
"""3 MB, which hardly become smaller, in records of 51 KB"""


def records(fields):
    return b"".join(framed(example({"image": field.tobytes()})) for field in fields)


def opened(data):
    return arrays(data, tfrecord=TFRecordConfig(shape="40,40,8", dtype="float32"))


@pytest.fixture
def packed(tmp_path):
    """Two files of TensorFlow's own, of which the first has several places at which decompression can begin."""
    for name, fields in (("a.tfrecord", FIELDS[:50]), ("b.tfrecord.gz", FIELDS[50:])):
        with tf.io.TFRecordWriter(str(tmp_path / name), GZIP) as writer:
            for field in fields:
                writer.write(example({"image": field.tobytes()}))
    assert gzip.decompress((tmp_path / "a.tfrecord").read_bytes()) == records(FIELDS[:50])
    return tmp_path


def test_records_are_read_in_any_order_by_several_threads(packed):
    source = opened(f"{packed}/*.tfrecord*")
    order = np.random.default_rng(1).permutation(60)
    np.testing.assert_array_equal(source.fetch_batch(order), FIELDS[order])
    assert wrong_reads_of_threads(source, FIELDS, 10) == []


def test_compressed_files_are_the_same_data_as_plain_ones(packed, tmp_path):
    """Also files of several members, which are read to their end, as gunzip does."""
    (tmp_path / "plain").mkdir()
    for name, fields in (("a.tfrecord", FIELDS[:50]), ("b.tfrecord.gz", FIELDS[50:])):
        (tmp_path / "plain" / name).write_bytes(records(fields))
    plain = opened(f"{tmp_path}/plain/*.tfrecord*")
    assert plain.fingerprint == opened(f"{packed}/*.tfrecord*").fingerprint
    (packed / "a.tfrecord").write_bytes(gzip.compress(records(FIELDS[:20])) + gzip.compress(records(FIELDS[20:50])))
    assert plain.fingerprint == opened(f"{packed}/*.tfrecord*").fingerprint


def test_labels_of_compressed_pictures_lie_anywhere_in_a_record(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    some = [{"a": 0.5, "z": number - 1, "image": png(noise)} for number in range(4)]
    path = write(tmp_path / "a.tfrecord.gz", some, options=GZIP)
    source = open_source(Config(data=str(path), image_size=64, tfrecord=TFRecordConfig(label="z")))
    assert source.labels.tolist() == [-1, 0, 1, 2]
    np.testing.assert_array_equal(source.fetch(3), noise)


def cut_in_the_middle(content):
    return content[: len(content) // 2]


def cut_at_a_record(_):
    """All that is left can be decompressed, and is one whole record of 1 MiB, as much as is read at once."""
    sample = RANDOM.bytes(2**20 - 100)
    record = framed(example({"image": sample + bytes(2**20 - len(framed(example({"image": sample}))))}))
    assert len(record) == 2**20
    packer = zlib.compressobj(wbits=31)
    return packer.compress(record) + packer.flush(zlib.Z_SYNC_FLUSH)


def flipped(content):
    return content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 255]) + content[len(content) // 2 + 1 :]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (cut_in_the_middle, "damaged GZIP"),
        (cut_at_a_record, "damaged GZIP"),
        (flipped, "damaged GZIP"),
        (lambda content: content[:-8] + b"12345678", "damaged GZIP"),
        (lambda content: content[:-8], "damaged GZIP"),
        (lambda content: content + b"more", "damaged GZIP"),
        (lambda content: content[:12], "damaged GZIP"),
        (lambda content: gzip.compress(b""), r"TFRecord file\(s\) without a record"),
        (lambda content: gzip.compress(records(FIELDS[:9])[:-7]), "record 8: the file ends before the record does"),
        (lambda content: gzip.compress(b"no records here"), "record 0: no record begins here"),
    ],
    ids=lambda each: getattr(each, "__name__", "complaint"),
)
def test_a_damaged_file_is_one_line(packed, change, complaint):
    path = packed / "a.tfrecord"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=rf"^--data {path}: .*{complaint}") as caught:
        opened(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_damaged_or_gone_during_a_run_is_named(packed):
    path = packed / "a.tfrecord"
    source, content = opened(path), path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    np.testing.assert_array_equal(source.fetch(3), FIELDS[3])
    for change, reason in ((lambda: None, "damaged GZIP"), (path.unlink, "No such file")):
        change()
        with pytest.raises(RunError, match=f"a.tfrecord, record 48: .*{reason}.*restore it, then resume"):
            source.fetch(48)


def test_a_missing_library_is_one_line_with_what_to_do(packed, monkeypatch):
    monkeypatch.setitem(sys.modules, "indexed_gzip", None)
    with pytest.raises(UserError, match=r"pip install 'hvdgan\[gzip\]'.*python -m hvdgan.prepare.*gunzip") as caught:
        opened(packed / "a.tfrecord")
    assert "\n" not in str(caught.value)


def test_a_plain_record_whose_length_begins_like_gzip_is_no_such_file(tmp_path):
    payload = example({"image": bytes(0x8B1F - 30)})
    payload = example({"image": bytes(2 * 0x8B1F - 30 - len(payload))})
    assert len(payload) == 0x8B1F
    (tmp_path / "a.tfrecord").write_bytes(framed(payload))
    assert (tmp_path / "a.tfrecord").read_bytes().startswith(b"\x1f\x8b")
    size = payload.count(b"\0")
    assert len(arrays(tmp_path / "a.tfrecord", tfrecord=TFRecordConfig(shape=f"{size}", dtype="uint8"))) == 1


def test_memory_for_places_is_bounded(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(np.random.default_rng(0).bytes(20 * 2**20), 1))
    many, few = (len(gzip_files.places_of(str(path), most)) // 2**15 for most in (1000, 4))
    assert 15 <= many <= 20 and few <= 4


def test_a_cached_index_is_used_until_the_file_changes(tmp_path, monkeypatch):
    data = tmp_path / "a.tfrecord"
    data.write_bytes(gzip.compress(b"".join(framed(example({"image": IMAGES[n % 6].tobytes()})) for n in range(1200))))
    reads, read = [], gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda *given: reads.append(given) or read(*given))
    for touched, is_read in ((False, True), (False, False), (True, True)):
        if touched:
            os.utime(data)
        reads.clear()
        scans = ScanCache(tmp_path / "cache")
        config = Config(data=str(data), image_size=8, tfrecord=TFRecordConfig(shape="8,8,3"))
        source = open_source(config, scans=scans)
        scans.write()
        assert bool(reads) == is_read
        np.testing.assert_array_equal(source.fetch(1001), IMAGES[1001 % 6])
