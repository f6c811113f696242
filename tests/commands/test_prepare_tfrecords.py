"""hvdgan.prepare of TFRecord files, also of those that are compressed as a whole.

Modules: data.packing.compressed_records.
"""

import gzip

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.cli.config import Config, TFRecordConfig
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.data import hold_out, open_source
from hvdgan.prepare import main
from packed import bytes_of, manifest_of, names_in
from packed_arrays import all_of, opened, pack
from tfrecord_files import IMAGES, png, write

RNG = np.random.default_rng(0)
FIELDS = RNG.normal(size=(12, 5, 4, 3)).astype(np.float32)
FLAGS = "--tfrecord-shape 5,4,3 --tfrecord-dtype float32 --tfrecord-label kind --conditions energy".split()
GZIP = tf.io.TFRecordOptions(compression_type="GZIP")


def records(fields):
    return [
        {"image": [value.item() for value in field.reshape(-1)], "kind": number % 2, "energy": number / 2}
        for number, field in enumerate(fields)
    ]


@pytest.fixture
def files(tmp_path):
    """The same records twice: as they are, and compressed."""
    for folder, options in (("plain", None), ("packed", GZIP)):
        (tmp_path / folder).mkdir()
        for number in range(2):
            part = records(FIELDS)[6 * number : 6 * number + 6]
            write(tmp_path / folder / f"{number}.tfrecord", part, options=options)
    return tmp_path


def test_float_records_are_packed_also_from_compressed_files(files, capsys):
    made = {name: pack(f"{files / name}/*.tfrecord", files / f"{name} shards", *FLAGS) for name in ("plain", "packed")}
    assert "hvdgan: unpacks 2 GZIP files of records" in capsys.readouterr().err
    assert bytes_of(made["plain"]) == bytes_of(made["packed"])
    source = opened(made["packed"], conditions=("energy",))
    np.testing.assert_array_equal(all_of(source), FIELDS)
    assert source.labels.tolist() == [0, 1] * 6 and source.conditions[:, 0].tolist() == [n / 2 for n in range(12)]
    assert manifest_of(made["packed"])["condition_names"] == ["energy"] and not (made["packed"] / ".work").exists()


def test_samples_are_held_out_as_those_of_the_files_are(files):
    made = pack(f"{files}/packed/*.tfrecord", files / "shards", *FLAGS)
    tfrecord = TFRecordConfig(shape="5,4,3", dtype="float32")
    settings = ArrayConfig(values="none")
    original = open_source(Config(data=f"{files}/plain/*.tfrecord", tfrecord=tfrecord, arrays=settings))
    assert original.values == opened(made).values
    held = [hold_out(source, 0.4)[1] for source in (original, opened(made))]
    np.testing.assert_array_equal(all_of(held[0]), all_of(held[1]))
    assert 0 < len(held[0]) < 12


def test_compressed_files_are_unpacked_once_although_the_command_was_stopped(files, monkeypatch):
    from hvdgan.data.packing import shard_writer

    flags = [f"{files}/packed/*.tfrecord", str(files / "made"), "--shards", "3", "--workers", "1", *FLAGS]

    def stop(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shard_writer, "records_of", stop)
        assert main(flags) == 1
    kept = files / "made" / ".work" / "unpacked" / "00001" / "1.tfrecord"
    before = kept.stat()
    seen = []
    monkeypatch.setattr("hvdgan.data.packing.destination.shutil.rmtree", lambda *_, **__: seen.append(kept.stat()))
    assert main(flags) == 0
    assert [(found.st_ino, found.st_mtime_ns) for found in seen] == [(before.st_ino, before.st_mtime_ns)]


def test_pictures_in_compressed_records_are_packed(tmp_path):
    some = [{"image": png(image), "kind": number} for number, image in enumerate(IMAGES)]
    write(tmp_path / "a.tfrecord.gz", some, options=GZIP)
    flags = ["--image-size", "8", "--tfrecord-label", "kind"]
    made = pack(tmp_path / "a.tfrecord.gz", tmp_path / "made", *flags, workers=2)
    source = open_source(Config(data=str(made), image_size=8))
    np.testing.assert_array_equal(all_of(source), IMAGES)
    assert source.labels.tolist() == list(range(6)) and manifest_of(made)["format_version"] == 1
    assert names_in(made) == [f"a.tfrecord.gz[{number}]" for number in range(6)]
    assert source.key(2) == b"a.tfrecord.gz[2]"


def damaged(path):
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("change", "flags", "complaint"),
    [
        (damaged, FLAGS, "a.tfrecord: damaged: "),
        (None, FLAGS[:2], "--image-size: expected the height and width"),
        (None, [*FLAGS, "--min-size", "5"], "no sample is left: all samples of PATH have shape (5, 4, 3), whose"),
        (None, [*FLAGS, "--conditions", "mass"], "--conditions mass: "),
        (None, [*FLAGS[:2], "--tfrecord-dtype", "int8"], "a.tfrecord[0]: numbers from "),
    ],
)
def test_a_mistake_is_one_line(tmp_path, capsys, change, flags, complaint):
    path = write(tmp_path / "a.tfrecord", records(FIELDS), options=GZIP)
    assert gzip.decompress(path.read_bytes())
    if change:
        change(path)
    capsys.readouterr()
    assert main([str(path), str(tmp_path / "made"), "--workers", "1", *flags]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "unpacks 1 GZIP" not in line]
    assert len(lines) == 1 and complaint.replace("PATH", str(path)) in lines[0], lines
    assert not (tmp_path / "made").exists()
