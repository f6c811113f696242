"""Arrays in TFRecords: lists and raw bytes of every type, pairs of two shapes, conditions, and mistakes.

Modules: data.records.record_arrays, data.records.record_reader.
"""

import struct

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.cli.config import Config, TFRecordConfig
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import UserError
from hvdgan.data import BadImage, hold_out, open_source
from hvdgan.data.formats.tf_example import float_list, int64_list
from hvdgan.train import main as train
from packed_arrays import all_of
from reading import batches_of
from tfrecord_files import IMAGES, png, write

RNG = np.random.default_rng(0)
FIELDS = RNG.normal(size=(9, 5, 4, 3)).astype(np.float32)
COARSE = RNG.normal(size=(9, 2, 2, 1)).astype(np.float32)


def lists(numbers):
    return [value.item() for value in numbers.reshape(-1)]


def records(**more):
    return [
        {"image": lists(field), "coarse": lists(coarse), "energy": float(number), "kind": number % 3, **more}
        for number, (field, coarse) in enumerate(zip(FIELDS, COARSE, strict=True))
    ]


def opened(path, *, paired=False, arrays=None, fit=None, **names):
    tfrecord = TFRecordConfig(**{"shape": "5,4,3", "dtype": "float32", **names})
    settings = ArrayConfig(**{"values": "none", **({"input_values": "none"} if paired else {}), **(arrays or {})})
    return open_source(Config(data=str(path), tfrecord=tfrecord, arrays=settings, fit=fit), paired=paired)


@pytest.mark.parametrize("shape", ["60", "12,5", "5,4,3", "2,5,3,2"])
def test_lists_of_floats_become_arrays_of_the_shape(tmp_path, shape):
    source = opened(write(tmp_path / "a.tfrecord", records()), shape=shape)
    sizes = tuple(map(int, shape.split(",")))
    assert source.layout.shape == (sizes if len(sizes) != 2 else (*sizes, 1)) and source.dtype == np.float32
    np.testing.assert_array_equal(all_of(source), FIELDS.reshape(9, *source.layout.shape))
    np.testing.assert_array_equal(source.fetch(4), FIELDS[4].reshape(source.layout.shape))


LIMITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


@pytest.mark.parametrize("dtype", LIMITS)
def test_lists_of_integers_come_exactly(tmp_path, dtype):
    """Of all lengths that a varint has, and both signs."""
    largest = 2 ** (LIMITS[dtype] - 1) - 1
    values = np.array([[0, 1, -1, 127, -128, 100, largest, -largest - 1]] * 3, dtype)
    source = opened(write(tmp_path / "a.tfrecord", [{"image": lists(row)} for row in values]), shape="8", dtype=dtype)
    assert source.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(all_of(source), values)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int16", "uint32", "int64"])
def test_raw_bytes_of_a_named_type(tmp_path, dtype):
    numbers = (RNG.normal(size=(4, 5, 4, 3)) * 40 + 90).clip(0, 200).astype(dtype)
    some = [{"image": each.astype(np.dtype(dtype).newbyteorder("<")).tobytes()} for each in numbers]
    source = opened(write(tmp_path / "a.tfrecord", some), dtype=dtype)
    assert all_of(source).dtype == np.dtype(dtype)
    np.testing.assert_array_equal(all_of(source), numbers)


def test_lists_that_are_not_packed():
    """As some writers of other languages make them; TensorFlow packs."""
    floats = [0.5, -2.25, 1e-30]
    content = b"".join(b"\x0d" + struct.pack("<f", value) for value in floats)
    np.testing.assert_array_equal(float_list(content), np.array(floats, np.float32))
    assert int64_list(b"\x08\x05\x08\x80\x01\x08" + b"\xff" * 9 + b"\x01").tolist() == [5, 128, -1]
    packed = tf.train.Int64List(value=[5, 128, -1, -(2**63)]).SerializeToString()
    assert int64_list(packed).tolist() == [5, 128, -1, -(2**63)]
    assert float_list(b"").tolist() == int64_list(b"").tolist() == []
    for damaged in (b"\x08\x05\x10\x05", b"\x08\x80"):
        with pytest.raises(ValueError, match="damaged|ends within"):
            int64_list(damaged)


def test_pairs_of_two_shapes_with_classes_and_conditions(tmp_path):
    path = write(tmp_path / "a.tfrecord", records())
    settings = {"conditions": ("energy",), "condition_values": "none"}
    names = {"input": "coarse", "input_shape": "2,2,1", "label": "kind"}
    source = opened(path, paired=True, arrays=settings, **names)
    assert (source.layout.shape, source.layout.input_shape) == ((5, 4, 3), (2, 2, 1))
    inputs, samples = source.layout.split(all_of(source))
    np.testing.assert_array_equal(samples, FIELDS)
    np.testing.assert_array_equal(inputs, COARSE)
    assert source.labels.tolist() == [number % 3 for number in range(9)]
    assert source.conditions[:, 0].tolist() == list(range(9)) and source.values.conditions.channels == ("energy",)
    alone = opened(path, arrays=settings, **names)
    np.testing.assert_array_equal(all_of(alone), FIELDS)


def test_pictures_have_conditions_too(tmp_path):
    some = [{"image": png(image), "energy": number / 4} for number, image in enumerate(IMAGES)]
    path = write(tmp_path / "a.tfrecord", some)
    config = Config(data=str(path), image_size=8, arrays=ArrayConfig(conditions=("energy",)))
    source = open_source(config)
    assert source.is_pictures and source.conditions[:, 0].tolist() == [0, 0.25, 0.5, 0.75, 1, 1.25]
    np.testing.assert_array_equal(all_of(source), IMAGES)
    without = open_source(Config(data=str(path), image_size=8))
    assert without.conditions is None and without.fingerprint != source.fingerprint


def test_the_global_batches_are_the_same_on_any_number_of_ranks_and_some_are_held_out(tmp_path):
    settings = {"conditions": ("energy",), "condition_values": "none"}
    source = opened(write(tmp_path / "a.tfrecord", records()), arrays=settings)
    wanted = next(iter(batches_of(source, global_batch_size=4, start_step=1)))
    slices = [next(iter(batches_of(source, global_batch_size=4, rank=rank, size=2, start_step=1))) for rank in (0, 1)]
    for name in ("images", "index", "conditions"):
        np.testing.assert_array_equal(np.concatenate([part[name] for part in slices]), wanted[name])
    np.testing.assert_array_equal(wanted["images"], FIELDS[wanted["index"]])
    train_on, held = hold_out(source, 0.5)
    assert 0 < len(held) < 9 and len(held) + len(train_on) == 9


def test_a_record_that_is_not_of_the_shape_is_left_out_by_name(tmp_path):
    some = records() * 30
    some[70] = {"image": [1.0] * 59}
    some[90] = {"other": 1.0}
    some[110] = {"image": [2**60] * 60}
    source = opened(write(tmp_path / "a.tfrecord", some))
    np.testing.assert_array_equal(source.fetch(110), np.full((5, 4, 3), 2.0**60))
    for index, reason in ((70, "59 numbers in image"), (90, "no feature image")):
        with pytest.raises(BadImage, match=reason) as caught:
            source.fetch(index)
        assert caught.value.bad_file.name == f"a.tfrecord[{index}]"


def test_numbers_that_would_lose_are_bad(tmp_path):
    source = write(tmp_path / "a.tfrecord", [{"image": [0.1, 0.2]}, {"image": [1, 2**40]}] * 40)
    with pytest.raises(UserError, match=r"a.tfrecord\[0\]: numbers from 0.1 to 0.2 are not exact in float16"):
        opened(source, shape="2", dtype="float16")
    with pytest.raises(UserError, match=r"a.tfrecord\[0\]: .* are not exact in int32"):
        opened(source, shape="2", dtype="int32")


MISTAKES = [
    ({"shape": None}, "--tfrecord-dtype float32: give the shape of an array too"),
    ({"dtype": "complex64"}, "--tfrecord-dtype complex64: expected float16, float32"),
    ({"shape": "5,x,3"}, "--tfrecord-shape 5,x,3: expected one to four lengths, channels last"),
    ({"shape": "1,2,3,2,5"}, "--tfrecord-shape 1,2,3,2,5: expected one to four lengths"),
    ({"shape": "5,4,4"}, r"a.tfrecord\[0\]: 60 numbers in image; expected those of shape \(5, 4, 4\)"),
    ({"image": "field"}, "--tfrecord-image field: .*record 0 has the features coarse, energy, image, kind"),
    ({"paired": True}, "--tfrecord-input: name the feature that holds the inputs"),
    ({"dtype": None, "input_shape": "2,2,1"}, "--tfrecord-input-shape 2,2,1: is for arrays; add --tfrecord-dtype"),
    ({"arrays": {"conditions": ("mass",)}}, "--conditions mass: .*record 0 has the features coarse"),
    ({"arrays": {"conditions": ("coarse",)}}, "--conditions coarse: .*record 0: not one finite number"),
    ({"arrays": {"values": None}}, "numbers from .* declare their map"),
    ({"arrays": {"constants": "ground"}}, "--constants: TFRecords have no fields"),
    ({"fit": "crop"}, "--fit crop: resizes 8-bit pictures"),
]


@pytest.mark.parametrize(("change", "complaint"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(tmp_path, change, complaint):
    path = write(tmp_path / "a.tfrecord", records())
    with pytest.raises(UserError, match=complaint):
        opened(path, **change)


def test_a_run_trains_on_float_records(tmp_path, capsys):
    write(tmp_path / "a.tfrecord", records())
    flags = f"--recipe tiny_arrays:Volumes --data {tmp_path}/a.tfrecord --tfrecord-shape 5,4,3 --tfrecord-dtype float32"
    flags += f" --values standard --conditions energy --global-batch-size 4 --sample-every 0 --run-dir {tmp_path}/run"
    assert train(flags.split()) == 0, capsys.readouterr().err
