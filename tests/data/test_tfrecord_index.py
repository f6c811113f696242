"""The index of TFRecords is kept in the run folder until the files change.

Modules: data.formats.tf_example.
"""

import os

import numpy as np
import pytest

from hvdgan.data.formats.tf_example import example
from hvdgan.data.formats.tfrecord import framed
from hvdgan.train import main

RNG = np.random.default_rng(0)


def write(path, count=1200, label=0):
    records = [example({"image": RNG.bytes(192), "label": label}) for _ in range(count)]
    path.write_bytes(b"".join(framed(record) for record in records))
    return path


@pytest.fixture
def reads(monkeypatch):
    """Where TFRecord files were read."""
    places, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *where: places.append(where) or pread(*where))
    return places


def flags(data, folder, steps, *more):
    words = f"--recipe tiny:Tiny --data {data} --tfrecord-shape 8,8,3 --tfrecord-label label --image-size 8"
    return [*words.split(), *f"--global-batch-size 2 --steps {steps} --run-dir {folder}".split(), *more]


def test_the_second_start_looks_at_a_sample_alone(tmp_path, reads):
    data, folder = write(tmp_path / "a.tfrecord"), tmp_path / "run"
    assert main(flags(data, folder, 1, "--dry-run")) == 0
    assert not folder.exists()
    reads.clear()
    assert main(flags(data, folder, 1)) == 0
    assert len(reads) > 1200
    reads.clear()
    assert main(flags(data, folder, 2)) == 0
    assert len(reads) < 400


def changed(path):
    """Another byte, at the same size."""
    content = path.read_bytes()
    write(path)
    assert path.stat().st_size == len(content) and path.read_bytes() != content


def changed_unseen(path):
    """As if nothing had been written."""
    times = path.stat()
    changed(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def cut(path):
    os.truncate(path, path.stat().st_size - 300)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (changed, "was made with other images"),
        (changed_unseen, "was made with other images"),
        (cut, "record 1198: the file ends before the record does"),
    ],
)
def test_a_file_that_was_changed_is_looked_at_again(tmp_path, capsys, change, complaint):
    data, folder = write(tmp_path / "a.tfrecord"), tmp_path / "run"
    assert main(flags(data, folder, 1)) == 0
    change(data)
    capsys.readouterr()
    assert main(flags(data, folder, 2)) == 2
    assert complaint in capsys.readouterr().err


def test_a_damaged_index_counts_as_none(tmp_path, reads):
    data, folder = write(tmp_path / "a.tfrecord"), tmp_path / "run"
    assert main(flags(data, folder, 1)) == 0
    (kept,) = (folder / "cache").iterdir()
    content = bytearray(kept.read_bytes())
    content[-9] ^= 1
    kept.write_bytes(content)
    reads.clear()
    assert main(flags(data, folder, 2)) == 0
    assert len(reads) > 1200
    reads.clear()
    assert main(flags(data, folder, 3)) == 0
    assert len(reads) < 400
