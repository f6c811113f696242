"""Packed shards as a source: the pixels, labels and hold-out of the original; damage is named by record.

Modules: data.formats.manifest, data.formats.shard_decoder, data.formats.shard_reader,
data.formats.tf_example, data.formats.tfrecord.
"""

import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.checkpoints import checkpoint, files
from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError, UserError
from hvdgan.data import cached, hold_out, open_source
from hvdgan.train import main as train
from packed import prepare, write_images
from reading import batches_of


def opened(data, *, paired=False, **changes):
    return open_source(
        Config(data=str(data), **{"image_size": 8, "channels": 3, "fit": "crop", **changes}), paired=paired
    )


def all_images(source):
    return source.fetch_batch(np.arange(len(source)))


def batches(source, rank=0, size=1, start_step=0):
    """With a batch of 4 over all ranks."""
    return batches_of(source, seed=3, global_batch_size=4, rank=rank, size=size, start_step=start_step)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def shards(folder):
    return prepare(folder, folder.parent / "shards")


@pytest.fixture
def copy(shards, tmp_path):
    """A copy of the shards that may be damaged."""
    return shutil.copytree(shards, tmp_path / "shards")


def first_shard(folder):
    return folder / "images-00000-of-00003.tfrecord"


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("encoding", ["png", "raw", "jpeg"])
def test_shards_hold_the_images_of_the_folder(folder, tmp_path, encoding, channels):
    made = prepare(folder, tmp_path / "shards", "--encoding", encoding, "--channels", str(channels))
    source, original = opened(made, channels=None), opened(folder, channels=channels)
    assert (len(source), source.record_shape) == (len(original), original.record_shape)
    np.testing.assert_array_equal(source.labels, original.labels)
    assert source.class_names == original.class_names == ["class 0", "class 1"]
    difference = all_images(source).astype(int) - all_images(original)
    assert abs(difference).max() <= (0 if encoding != "jpeg" else 40) and abs(difference).mean() < 4
    np.testing.assert_array_equal(source.fetch(7), all_images(source)[7])


def test_the_images_of_an_array_with_its_labels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (7, 8, 8), np.uint8)
    labels = np.array([3, 0, 1, 3, 2, 2, -1])
    np.savez(tmp_path / "some.npz", images=pixels, labels=labels)
    source = opened(prepare(tmp_path / "some.npz", tmp_path / "shards"), channels=None)
    np.testing.assert_array_equal(all_images(source)[..., 0], pixels)
    np.testing.assert_array_equal(source.labels, labels)
    assert source.num_classes == 0 and source.labels.dtype == np.int32


def test_images_are_held_out_as_those_of_the_folder_are(folder, shards):
    held = [hold_out(opened(data), 0.6)[1] for data in (folder, shards)]
    np.testing.assert_array_equal(all_images(held[0]), all_images(held[1]))


@pytest.mark.parametrize("paired", [False, True])
def test_images_are_held_out_as_those_of_the_array_are(tmp_path, paired):
    """Also where each is decoded only once."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 16 if paired else 8, 3), np.uint8)
    np.save(tmp_path / "some.npy", pixels)
    made = prepare(tmp_path / "some.npy", tmp_path / "shards", *(["--pairs"] if paired else []))
    array, shards = (opened(data, paired=paired) for data in (tmp_path / "some.npy", made))
    held = [hold_out(source, 0.5)[1] for source in (array, shards, cached(shards, "memory", tmp_path))]
    assert 8 < len(held[0]) < 32
    for other in held[1:]:
        np.testing.assert_array_equal(all_images(other), all_images(held[0]))
    # Some of the held-out images are chosen in the same way.
    again = [hold_out(source, 0.3)[1] for source in held]
    np.testing.assert_array_equal(all_images(again[1]), all_images(again[0]))


def test_equal_images_of_an_array_stay_together(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), np.uint8)
    np.save(tmp_path / "twice.npy", np.concatenate([pixels, pixels]))
    source = opened(prepare(tmp_path / "twice.npy", tmp_path / "shards"))
    assert [source.key(index) for index in range(8)] == [source.key(index) for index in range(8, 16)]
    assert len({source.key(index) for index in range(16)}) == 8


@pytest.mark.parametrize(("image_size", "channels"), [(4, 3), (16, 3), (8, 1)])
def test_another_size_or_number_of_channels_is_converted(folder, shards, image_size, channels):
    source = opened(shards, image_size=image_size, channels=channels)
    assert source.fetch(0).shape == (image_size, image_size, channels)
    means = [all_images(one).mean() for one in (source, opened(folder, image_size=image_size, channels=channels))]
    assert abs(means[0] - means[1]) < 3


@pytest.mark.parametrize("encoding", ["png", "raw"])
def test_pairs_stay_together(tmp_path, encoding):
    write_images(tmp_path / "AB", width=20)
    folders = {"halves": tmp_path / "AB", "two": tmp_path / "two"}
    write_images(tmp_path / "two" / "A", classes=1)
    write_images(tmp_path / "two" / "B", classes=1)
    for name, data in folders.items():
        made = prepare(data, tmp_path / f"shards {name}", "--pairs", "--encoding", encoding)
        source, original = opened(made, paired=True), opened(data, paired=True)
        assert source.record_shape == (8, 8, 6)
        np.testing.assert_array_equal(all_images(source), all_images(original))
        with pytest.raises(UserError, match="its shards hold pairs"):
            opened(made)


def test_single_images_are_no_pairs(shards):
    with pytest.raises(UserError, match="hold single images, .* --pairs"):
        opened(shards, paired=True)


def test_the_global_batches_are_those_of_the_folder_on_any_number_of_ranks(folder, shards):
    wanted = [next(iter(batches(opened(folder), start_step=step))) for step in (0, 5)]
    for size in (1, 2, 4):
        for step, batch in zip((0, 5), wanted, strict=True):
            slices = []
            for rank in range(size):
                with batches(opened(shards), rank, size, step) as some:
                    slices.append(next(some))
            for name in ("images", "index", "labels"):
                np.testing.assert_array_equal(np.concatenate([part[name] for part in slices]), batch[name])


def test_only_the_records_of_the_batch_are_read(shards, monkeypatch):
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, *where: read.append(where) or pread(descriptor, *where))
    source = opened(shards)
    assert read == []
    source.fetch_batch(np.array([9, 2, 2]))
    assert len(read) == 3 and sum(length for length, _ in read) < 1500


def test_tensorflow_reads_what_was_written(shards):
    """With its own reader, which checks every checksum, and its own parser."""
    files = sorted(str(path) for path in shards.glob("*.tfrecord"))
    records = list(tf.data.TFRecordDataset(files).as_numpy_iterator())
    source = opened(shards)
    for index, record in enumerate(records):
        features = tf.train.Example.FromString(record).features.feature
        pixels = tf.io.decode_png(features["image/encoded"].bytes_list.value[0])
        np.testing.assert_array_equal(pixels, source.fetch(index))
        assert features["image/class/label"].int64_list.value == [source.labels[index]]
        assert features["image/filename"].bytes_list.value == [source.key(index)]
        assert features["image/height"].int64_list.value == [8]
    assert len(records) == len(source)


def test_the_index_says_where_each_record_begins(shards):
    for path in shards.glob("*.tfrecord"):
        content, place = path.read_bytes(), 0
        for line in path.with_suffix(".idx").read_text().splitlines():
            offset, length = map(int, line.split())
            assert offset == place and int.from_bytes(content[offset : offset + 8], "little") == length - 16
            place += length
        assert place == len(content)


def test_the_fingerprint_tells_other_images_apart(folder, shards, tmp_path):
    again = prepare(folder, tmp_path / "again")
    other = prepare(write_images(tmp_path / "other", 9), tmp_path / "other shards")
    assert opened(shards).fingerprint == opened(again).fingerprint
    assert len({opened(shards).fingerprint, opened(other).fingerprint, opened(shards, channels=1).fingerprint}) == 3


@pytest.mark.parametrize("files", [2, 0])  # with 0 each is read as where two threads open it at once
def test_more_shards_than_files_stay_open(folder, tmp_path, monkeypatch, files):
    monkeypatch.setattr("hvdgan.data.formats.shard_reader.OPEN_FILES", files)
    source = opened(prepare(folder, tmp_path / "shards", "--shards", "10"))
    before = len(os.listdir("/proc/self/fd"))
    np.testing.assert_array_equal(all_images(source), all_images(opened(folder)))
    assert len(os.listdir("/proc/self/fd")) <= before + files


def _drop(path):
    path.unlink()


def _truncate(path):
    os.truncate(path, path.stat().st_size - 2)


def _rewrite(path):
    flip(path, -3)


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("images-00001-of-00003.tfrecord", _drop, "images-00001-of-00003.tfrecord: No such file"),
        ("images-00001-of-00003.tfrecord", _truncate, "images-00001-of-00003.tfrecord has [0-9,]+ bytes; expected"),
        ("images-00002-of-00003.idx", _rewrite, "images-00002-of-00003.idx has another checksum"),
        ("images-00002-of-00003.json", _drop, "images-00002-of-00003.json: No such file"),
        ("labels.npy", _rewrite, "labels.npy has another checksum"),
        ("manifest.json", _drop, "not finished"),
        ("manifest.json", _truncate, "cannot be read|another format"),
        ("manifest.json", lambda path: path.write_text("{}"), "cannot be read"),
        ("manifest.json", lambda path: path.write_text('{"format_version": 3}'), "format version 3; this hvdgan"),
        ("manifest.json", lambda path: path.write_text('{"format_version": 1}'), "damaged: it lacks channels"),
        (
            "manifest.json",
            lambda path: path.write_text(path.read_text().replace("class 1", "class 2")),
            "checksum does",
        ),
        ("images-9.tfrecord", lambda path: path.write_text(""), "images-9.tfrecord: the manifest does not name it"),
    ],
)
def test_a_folder_whose_manifest_does_not_match_its_files_is_refused(copy, name, change, complaint):
    change(copy / name)
    with pytest.raises(UserError, match=f"^--data .*({complaint})"):
        opened(copy)


def test_a_folder_with_a_manifest_of_something_else_is_a_folder_of_images(folder):
    (folder / "manifest.json").write_text(json.dumps({"name": "my app"}))
    try:
        assert len(opened(folder)) == 10
    finally:
        (folder / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda path: flip(path, 60), r"record 0 \(class 0/000.png\): its checksum does not match"),
        (lambda path: flip(path, 3), r"record 0 \(class 0/000.png\): no record begins here"),
        (_truncate, r"record 2 \(class 0/004.jpg\): the file ends 2 bytes before the record does"),
        (_drop, r"record 0 \(class 0/000.png\): No such file or directory"),
    ],
)
def test_damage_after_opening_names_file_and_record(copy, change, complaint):
    source = opened(copy)
    change(first_shard(copy))
    with pytest.raises(RunError, match=f"images-00000-of-00003.tfrecord, {complaint}; .* --verify"):
        all_images(source)


def test_a_record_that_is_no_image_is_named(copy, monkeypatch):
    """Which its checksum does not tell."""
    monkeypatch.setattr("hvdgan.data.formats.shard_reader.payload_of", lambda record: b"no example")
    with pytest.raises(RunError, match=r"record 1 \(.*\): cannot be decoded"):
        opened(copy).fetch_batch(np.array([1, 2]))


@pytest.mark.parametrize("change", [lambda path: flip(path, 60), _truncate])
def test_damage_during_training_ends_it_and_the_last_checkpoint_stays(copy, tmp_path, capsys, monkeypatch, change):
    """All shards are damaged when the first checkpoint has just been written."""
    write, written = checkpoint.write, []

    def write_and_damage(*arguments):
        written.append(write(*arguments))
        if len(written) == 1:
            for shard in copy.glob("*.tfrecord"):
                change(shard)
        return written[-1]

    monkeypatch.setattr(checkpoint, "write", write_and_damage)
    flags = (
        "--recipe tiny:Tiny --image-size 8 --fit crop --global-batch-size 4 --steps 1000 "
        "--checkpoint-every 50 --sample-every 0"
    )
    assert train([*flags.split(), "--data", str(copy), "--run-dir", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"hvdgan: --data {copy}: images-0000") and ", record " in error
    kept = files.newest(tmp_path / "run" / "checkpoints")
    assert kept == written[-1] and files.damaged(kept, files.read_manifest(kept)) == []
