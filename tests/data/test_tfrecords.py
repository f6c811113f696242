"""TFRecords of other programs: which features are read, and errors in a file.

Modules: data.formats.tfrecord, data.formats.tfrecord_scan.
"""

import errno
import os

import numpy as np
import pytest

from hvdgan.cli.config import Config, TFRecordConfig
from hvdgan.cli.errors import RunError, UserError
from hvdgan.data import BadImage, open_source
from hvdgan.data.formats import tfrecord, tfrecord_scan
from hvdgan.data.sources.keras_datasets import KERAS
from tfrecord_files import IMAGES, png, records, write

RNG = np.random.default_rng(0)


def opened(path, paired=False, **settings):
    return open_source(Config(data=str(path), **{"image_size": 8, "fit": "crop", **settings}), paired=paired)


def test_labels_lie_anywhere_in_a_record_and_may_be_negative(tmp_path):
    """Beside features of other kinds, before and after an image longer than what is read ahead."""
    noise = RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    some = [{"a": 0.5, "z": number - 1, "image": png(noise), "b": [1, 2, 3]} for number in range(4)]
    source = opened(write(tmp_path / "a.tfrecord", some), tfrecord=TFRecordConfig(label="z"))
    assert source.labels.tolist() == [-1, 0, 1, 2] and source.num_classes == 0
    source = opened(write(tmp_path / "b.tfrecord", some[1:]), tfrecord=TFRecordConfig(label="z"))
    assert source.labels.tolist() == [0, 1, 2] and source.num_classes == 3


def test_the_features_can_stand_in_a_config_file(tmp_path, monkeypatch, capsys):
    from hvdgan.train import main

    write(tmp_path / "a.tfrecord", [{"pixels": image.tobytes(), "kind": number} for number, image in enumerate(IMAGES)])
    (tmp_path / "c.json").write_text(
        '{"data": "a.tfrecord", "tfrecord_image": "pixels", "tfrecord_shape": "8,8,3", "tfrecord_label": "kind"}'
    )
    monkeypatch.chdir(tmp_path)
    flags = "--config c.json --recipe tiny:Tiny --image-size 8 --global-batch-size 2 --steps 2 --run-dir run"
    assert main(flags.split()) == 0, capsys.readouterr().err


def test_a_record_without_an_image_is_left_out_by_name(tmp_path):
    some = records()
    some[2] = {"image": b"no image", "label": 0}
    some[4] = {"label": 0}
    source = opened(write(tmp_path / "a.tfrecord", some))
    for index, reason in ((2, "not a PNG, JPEG"), (4, "no feature image")):
        with pytest.raises(BadImage, match=reason) as caught:
            source.fetch(index)
        assert caught.value.bad_file.name == f"a.tfrecord[{index}]"
    np.testing.assert_array_equal(source.fetch(5), IMAGES[5])


def cut(path):
    os.truncate(path, path.stat().st_size - 3)


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


# The change to the file, the remark about it, and the complaint
MISTAKES = [
    (cut, {}, r"a.tfrecord, record 5: the file ends before the record does"),
    (lambda path: flip(path, 2), {}, r"a.tfrecord, record 0: no record begins here"),
    (lambda path: path.write_bytes(b""), {}, r"1 TFRecord file\(s\) without a record"),
    (
        None,
        {"tfrecord": TFRecordConfig(image="picture")},
        r"--tfrecord-image picture: .*record 0 has the features image, label",
    ),
    (None, {"tfrecord": TFRecordConfig(label="class")}, r"--tfrecord-label class: .* has the features image, label"),
    (None, {"tfrecord": TFRecordConfig(label="image")}, r"--tfrecord-label image: .*not one integer"),
    (None, {"tfrecord": TFRecordConfig(image="label")}, r"feature label is not one value of bytes"),
    (None, {"tfrecord": TFRecordConfig(shape="8,8")}, r"--tfrecord-shape 8,8: expected height, width and"),
    (None, {"tfrecord": TFRecordConfig(shape="8,8,5")}, r"--tfrecord-shape 8,8,5: expected height, width and"),
]


@pytest.mark.parametrize(("change", "settings", "complaint"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(tmp_path, change, settings, complaint):
    path = write(tmp_path / "a.tfrecord", records())
    if change:
        change(path)
    with pytest.raises(UserError, match=complaint):
        opened(path, **settings)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (cut, "record 5: the file ends 3 bytes before"),
        (lambda path: flip(path, -8), "record 5: its checksum does not match"),
        (lambda path: path.unlink(), "record 5: No such file"),
    ],
)
def test_damage_after_opening_names_file_and_record(tmp_path, change, reason):
    path = write(tmp_path / "a.tfrecord", records())
    source = opened(path)
    change(path)
    with pytest.raises(RunError, match=f"a.tfrecord, {reason}.*; the file is damaged"):
        source.fetch(5)


def raw_records(images=IMAGES, labels=(0, 1, 2, 3, 4, 5), **more):
    """Of one length each, whatever the pixels."""
    return [{"image": image.tobytes(), "label": label, **more} for image, label in zip(images, labels, strict=True)]


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, RunError), (errno.EACCES, UserError)])
def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch, number, kind):
    """A disk that has failed is no mistake of the user's."""
    path = write(tmp_path / "a.tfrecord", records())

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tfrecord.RecordFile, "read", fail)
    with pytest.raises(RunError) as caught:
        opened(path)
    assert type(caught.value) is kind
    assert str(caught.value).endswith(f"a.tfrecord: {os.strerror(number)}")


def test_the_fingerprint_covers_pixels_and_labels(tmp_path):
    """Of files of one name whose records lie at the same places."""

    def fingerprint(folder, records, label=None):
        (tmp_path / folder).mkdir()
        path = write(tmp_path / folder / "a.tfrecord", records)
        return opened(path, tfrecord=TFRecordConfig(shape="8,8,3", label=label)).fingerprint

    first, last = IMAGES.copy(), IMAGES.copy()
    first[0, 0, 0, 0] ^= 1
    last[-1, -1, -1, -1] ^= 1
    numbered = raw_records(other=7)
    seen = [
        fingerprint("plain", numbered),
        fingerprint("first", raw_records(first, other=7)),
        fingerprint("last", raw_records(last, other=7)),
        fingerprint("turned round", numbered[::-1]),
        fingerprint("label", numbered, label="label"),
        fingerprint("other label", numbered, label="other"),
        fingerprint("changed", raw_records(labels=[5, 1, 2, 3, 4, 0], other=7), label="label"),
    ]
    assert len(set(seen)) == len(seen)
    assert fingerprint("again", numbered) == seen[0]


def test_labels_alone_tell_records_apart(tmp_path, monkeypatch):
    """Where another feature of the same records is the label, and where a checksum does not tell."""
    path = write(tmp_path / "a.tfrecord", raw_records(other=7))
    settings = {"tfrecord": TFRecordConfig(shape="8,8,3", label="label")}
    before = opened(path, **settings).fingerprint
    single_integer = tfrecord_scan.single_integer
    monkeypatch.setattr(tfrecord_scan, "single_integer", lambda *where: single_integer(*where) + 1)
    assert opened(path, **settings).fingerprint != before


def test_the_checksums_cost_one_read_more_per_file(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tfrecord", records() * 10)
    places, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda file, count, at: places.append(at) or pread(file, count, at))
    assert len(opened(path)) == 60
    assert len(places) <= 60 + 1 + 2  # and what the first record is looked at for


def test_names_that_no_library_knows(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=f"--data keras:faces: expected one of .*keras:{KERAS[0]}"):
        opened("keras:faces")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(UserError, match="--data tfds:no_such_set_of_images: error of TensorFlow Datasets: "):
        opened("tfds:no_such_set_of_images")


def test_a_set_of_keras_that_is_not_there_and_cannot_be_fetched(monkeypatch):
    def unreachable():
        raise OSError("no route to host")

    monkeypatch.setattr("keras.datasets.mnist.load_data", unreachable)
    with pytest.raises(UserError, match="--data keras:mnist: Keras cannot load it: no route to host; .*KERAS_HOME"):
        opened("keras:mnist")
