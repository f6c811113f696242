"""TFRecords: pictures, arrays, labels and conditions; damage and mistakes in one line; compressed files."""

import os

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.data import BadImage, open_source
from hvdgan.errors import RunError, UserError
from hvdgan.settings.config import Config, TFRecordConfig
from hvdgan.settings.data import ArrayConfig
from reading import all_of
from tfrecord_files import IMAGES, records, write

RNG = np.random.default_rng(0)
FIELDS = RNG.normal(size=(9, 5, 4, 3)).astype(np.float32)
COARSE = RNG.normal(size=(9, 2, 2, 1)).astype(np.float32)
NAMES = {"input": "coarse", "input_shape": "2,2,1", "label": "kind"}
CONDITIONS = {"conditions": ("energy",), "condition_values": "none"}


def lists(numbers):
    return [value.item() for value in numbers.reshape(-1)]


def fields():
    return [
        {"image": lists(field), "coarse": lists(coarse), "energy": float(number), "kind": number % 3}
        for number, (field, coarse) in enumerate(zip(FIELDS, COARSE, strict=True))
    ]


def pictures(path, *, paired=False, **names):
    config = Config(data=str(path), image_size=8, fit="crop", tfrecord=TFRecordConfig(**names))
    return open_source(config, paired=paired)


def arrays(path, *, paired=False, settings=None, peers=None, in_order=False, **names):
    tfrecord = TFRecordConfig(**{"shape": "5,4,3", "dtype": "float32", **names})
    given = {"values": "none", **({"input_values": "none"} if paired else {}), **(settings or {})}
    config = Config(data=str(path), tfrecord=tfrecord, arrays=ArrayConfig(**given))
    return open_source(config, paired=paired, in_order=in_order, **({"peers": peers} if peers else {}))


def test_raw_bytes_with_the_channels_first(tmp_path):
    images = [np.moveaxis(each, -1, 0).tobytes() for each in IMAGES]
    path = write(tmp_path / "a.tfrecord", [{"image": each, "half": each} for each in images])
    source = pictures(path, shape="3,8,8", input="half", paired=True)
    for part in source.fetch_batch(np.arange(len(source))).values():
        np.testing.assert_array_equal(part, IMAGES)
    assert source.named(3) == "a.tfrecord[3]" and source.key(3) == b"a.tfrecord[3]"


def test_a_record_that_cannot_be_used_is_left_out_by_name(tmp_path):
    some = fields()
    some[3], some[4], some[5] = {"image": [1.0] * 59}, {"other": 1.0}, {"image": [2**60] * 60}
    some[6], some[7] = {"image": [2**60 + 1] * 60}, {"image": bytes(7)}
    encoded = records()
    encoded[2] = {"image": b"no image"}
    source, coded = arrays(write(tmp_path / "a.tfrecord", some)), pictures(write(tmp_path / "b.tfrecord", encoded))
    np.testing.assert_array_equal(source.fetch(5)["images"], np.full((5, 4, 3), 2.0**60))
    reasons = {3: "59 numbers in image", 4: "no feature image", 6: "are not exact in float32", 7: "7 bytes in image"}
    cases = [(source, "a", index, reason) for index, reason in reasons.items()]
    for each, name, index, reason in (*cases, (coded, "b", 2, "not a PNG, JPEG")):
        with pytest.raises(BadImage, match=reason) as caught:
            each.fetch(index)
        assert caught.value.bad_file.name == f"{name}.tfrecord[{index}]"


def test_numbers_come_exactly_and_damage_after_opening_names_file_and_record(tmp_path):
    limits = np.iinfo(np.int64)
    values = np.array([[0, 1, -1, 127, -128, 100, limits.max, limits.min]] * 6)
    path = write(tmp_path / "a.tfrecord", [{"image": lists(row)} for row in values])
    source = arrays(path, shape="8", dtype="int64")
    np.testing.assert_array_equal(all_of(source), values)
    flip(path, -8)
    with pytest.raises(RunError, match="a.tfrecord, record 5 cannot be read: its checksum does not match"):
        source.fetch(5)
    cut(path)
    with pytest.raises(RunError, match="a.tfrecord, record 5 cannot be read: the file ends before the record"):
        source.fetch(5)


def cut(path):
    os.truncate(path, path.stat().st_size - 3)


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def no_example(path):
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"\xff\xff\xff")


# The change to the file, the settings, and the complaint
MISTAKES = [
    (cut, {}, r"a.tfrecord, record 5: the file ends before the record does"),
    (lambda path: flip(path, 40), {}, "a.tfrecord, record 0: its checksum does not match"),
    (no_example, {}, "a.tfrecord, record 0: not a tf.train.Example"),
    (None, {"image": "picture"}, r"--tfrecord-image picture: .*record 0 has the features image, label"),
    (
        None,
        {"image": "label"},
        r"a.tfrecord\[0\]: it has no feature label of one value in bytes; none of 6 .* raw pict",
    ),
    (None, {"shape": "8,8,3"}, r"a.tfrecord\[0\]: .* bytes in image; expected 192 bytes of uint8 \(8, 8, 3\)"),
]


@pytest.mark.parametrize(("change", "settings", "complaint"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_with_pictures(tmp_path, change, settings, complaint):
    path = write(tmp_path / "a.tfrecord", records())
    if change:
        change(path)
    with pytest.raises(UserError, match=complaint) as caught:
        pictures(path, **settings)
    assert "\n" not in str(caught.value)


def test_compressed_files_are_the_same_data_in_order_and_refused_otherwise(tmp_path):
    (tmp_path / "plain").mkdir()
    for number, some in enumerate((fields()[:5], fields()[5:])):
        write(tmp_path / f"{number}.tfrecord", some, options=tf.io.TFRecordOptions(compression_type="GZIP"))
        write(tmp_path / "plain" / f"{number}.tfrecord", some)
    with pytest.raises(UserError, match=r"0.tfrecord: compressed with GZIP,.*hvdgan.prepare, or .*gunzip") as told:
        arrays(f"{tmp_path}/*.tfrecord")
    assert "\n" not in str(told.value)
    packed = arrays(f"{tmp_path}/*.tfrecord", paired=True, settings=CONDITIONS, in_order=True, **NAMES)
    plain = arrays(f"{tmp_path}/plain/*.tfrecord", paired=True, settings=CONDITIONS, **NAMES)
    assert packed.fingerprint == plain.fingerprint and packed.named(7) == "1.tfrecord[2]"
    np.testing.assert_array_equal(all_of(packed), all_of(plain))
    np.testing.assert_array_equal(packed.fetch(2)["images"], plain.fetch(2)["images"])
    assert packed.labels.tolist() == plain.labels.tolist()
