"""Arrays in packed shards: their numbers, keys and classes are those of the originals; damage is named by record.

Modules: data.formats.array_codec, data.formats.array_records.
"""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.shared_errors import ALONE
from hvdgan.data import hold_out, open_source
from hvdgan.data.arrays.mapped import mapped
from hvdgan.data.arrays.statistics import with_statistics
from hvdgan.train import main as train
from packed import bytes_of
from packed_arrays import BESIDE, RNG, all_of, fields, opened, pack
from reading import batches_of

SHAPES = {"vector": (7,), "image": (6, 9), "field": (5, 4, 3), "volume": (4, 5, 6, 2)}
AXES = {"vector": "C", "image": "HW", "field": "HWC", "volume": "DHWC"}
TYPES = ["f2", "f4", "f8", "u1", "i1", "u2", "i2", "u4", "i4", "i8", ">f4", ">i2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return fields(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def shards(data):
    return pack(data, data.parent / "shards", *BESIDE)


def some_numbers(shape, dtype):
    """With the largest and the smallest number of the type."""
    dtype = np.dtype(dtype)
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    numbers = (RNG.normal(size=(9, *shape)) * 50).clip(0 if dtype.kind == "u" else -100, 100).astype(dtype)
    numbers.reshape(-1)[:2] = limits.min, limits.max
    return numbers


@pytest.mark.parametrize("encoding", ["raw", "zlib"])
@pytest.mark.parametrize("kind", SHAPES)
def test_numbers_of_every_type_come_back_bit_for_bit(tmp_path, kind, encoding):
    for dtype in TYPES:
        name = dtype.replace(">", "big")
        np.save(tmp_path / f"{name}.npy", some_numbers(SHAPES[kind], dtype))
        flags = ["--axes", AXES[kind], "--encoding", encoding]
        made = pack(tmp_path / f"{name}.npy", tmp_path / name, *flags)
        source, original = opened(made), opened(tmp_path / f"{name}.npy", axes=AXES[kind])
        assert source.dtype == original.dtype == np.dtype(dtype).newbyteorder("=")
        assert source.layout == original.layout
        assert all_of(source).tobytes() == all_of(original).tobytes(), dtype
        np.testing.assert_array_equal(source.fetch(4), original.fetch(4))


def test_all_that_lies_beside_the_samples_comes_back(data, shards):
    settings = {"conditions": ("energy", "angle"), "constants": "ground", "constant_values": "none"}
    original = opened(data, paired=True, inputs="coarse", **settings)
    for conditions in (("energy", "angle"), ("energy", "angle_0", "angle_1")):
        source = opened(shards, paired=True, **(settings | {"conditions": conditions}))
        assert source.layout == original.layout and source.dtype == original.dtype
        np.testing.assert_array_equal(all_of(source), all_of(original))
        np.testing.assert_array_equal(source.labels, original.labels)
        np.testing.assert_array_equal(source.conditions, original.conditions)
        np.testing.assert_array_equal(source.constants, original.constants)
        assert source.values == original.values


def test_conditions_are_chosen_by_name_and_none_is_used_unasked(data, shards):
    assert opened(shards, paired=True, constant_values="none").conditions is None
    some = opened(shards, paired=True, constant_values="none", conditions=("angle_1", "energy"))
    assert some.values.conditions.channels == ("angle_1", "energy")
    arrays = np.load(data)
    np.testing.assert_array_equal(some.conditions, np.stack([arrays["angle"][:, 1], arrays["energy"]], axis=1))


def test_a_table_replaces_the_conditions_that_were_packed(shards, tmp_path):
    (tmp_path / "t.csv").write_text("mass\n" + "".join(f"{number}\n" for number in range(20)))
    source = opened(shards, paired=True, constant_values="none", condition_table=tmp_path / "t.csv")
    assert source.conditions[:, 0].tolist() == list(range(20))


def test_the_networks_see_what_they_see_of_the_originals(data, shards):
    """Mapped by statistics of the data to train on, after some samples are held out."""
    settings = {"values": "standard", "input_values": "log1p+standard", "conditions": ("energy",)}
    more = {"constants": "ground", "constant_values": "standard"}
    seen = []
    for name, inputs in ((data, "coarse"), (shards, None)):
        everything = opened(name, paired=True, inputs=inputs, **settings, **more)
        source, held = hold_out(everything, 0.4)
        values = with_statistics(source, ALONE)
        seen.append(
            [source.numbers(np.arange(len(source))), *(all_of(mapped(each, values)) for each in (source, held))]
        )
        seen[-1] += [mapped(source, values).conditions, mapped(source, values).constants]
    for one, other in zip(*seen, strict=True):
        np.testing.assert_array_equal(one, other)
    assert 3 < len(seen[0][2]) < 15


def test_the_global_batches_are_those_of_the_original_on_any_number_of_ranks(data, shards):
    wanted = next(iter(batches_of(opened(data), global_batch_size=4, start_step=3)))
    made = pack(data, shards.parent / "single")
    for size in (1, 2, 4):
        slices = []
        for rank in range(size):
            with batches_of(opened(made), global_batch_size=4, rank=rank, size=size, start_step=3) as some:
                slices.append(next(some))
        for name in ("images", "index", "labels"):
            np.testing.assert_array_equal(np.concatenate([part[name] for part in slices]), wanted[name])


def test_a_value_map_is_asked_for_as_for_the_original(tmp_path):
    np.save(tmp_path / "counts.npy", np.ones((4, 3, 3), np.int16))
    np.save(tmp_path / "wide.npy", np.full((4, 3, 3), 7.5, np.float32))
    np.save(tmp_path / "unit.npy", RNG.random((4, 3, 3), np.float32))
    made = {name: pack(tmp_path / f"{name}.npy", tmp_path / name) for name in ("counts", "wide", "unit")}
    with pytest.raises(UserError, match="counts: integers of type int16 without a map"):
        open_source(Config(data=str(made["counts"])))
    with pytest.raises(UserError, match=r"wide: numbers from 7.5 to 7.5 .* declare their map"):
        open_source(Config(data=str(made["wide"])))
    assert str(open_source(Config(data=str(made["unit"]))).values.images) == "range:0,1"


MISTAKES = [
    (
        {"paired": False},
        "its shards hold samples with inputs, and this recipe takes single samples; .* without --pairs",
    ),
    ({"inputs": "fine"}, "--inputs fine: the shards of .* were packed with --inputs coarse; leave the flag out"),
    ({"axes": "CHW"}, "--axes CHW: the shards of .* were packed without --axes"),
    ({"constants": "sea"}, "--constants sea: the shards of .* were packed with --constants ground"),
    (
        {"conditions": ("mass",)},
        "--conditions mass: the conditions that were packed into .* are energy, angle_0, angle_1",
    ),
    ({"constant_values": None}, "--data .*numbers from .* declare their map, such as --constant-values"),
]


@pytest.mark.parametrize(("settings", "complaint"), MISTAKES)
def test_settings_that_are_not_those_of_the_shards_are_refused(shards, settings, complaint):
    with pytest.raises(UserError, match=f"^(--data .*)?{complaint}"):
        opened(shards, **{"paired": True, "constant_values": "none", **settings})


def test_flags_of_pictures_are_refused(shards):
    settings = ArrayConfig(values="none", input_values="none", constant_values="none")
    for change in ({"image_size": 8}, {"channels": 3}, {"fit": "crop"}):
        with pytest.raises(UserError, match="8-bit pictures|--channels 3"):
            open_source(Config(data=str(shards), arrays=settings, **change), paired=True)


def test_tensorflow_reads_what_was_written(data, shards):
    """With its own reader and parser, as other programs would."""
    arrays, files = np.load(data), sorted(str(path) for path in shards.glob("*.tfrecord"))
    wanted = {name: tf.io.FixedLenFeature((), tf.string) for name in ("sample", "input")}
    for index, record in enumerate(tf.data.TFRecordDataset(files)):
        parsed = tf.io.parse_single_example(record, wanted)
        sample = tf.reshape(tf.io.decode_raw(parsed["sample"], tf.float32), (6, 4, 2))
        np.testing.assert_array_equal(sample, arrays["images"][index])
        np.testing.assert_array_equal(tf.io.decode_raw(parsed["input"], tf.int16), arrays["coarse"][index].reshape(-1))
    assert index == 19


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("encoding", ["raw", "zlib"])
@pytest.mark.parametrize("place", [2, 25, 60, 250, -2])
def test_a_damaged_record_is_named_wherever_the_damage_lies(tmp_path, place, encoding):
    images = np.zeros((6, 64), np.float32) + np.arange(64)
    np.save(tmp_path / "a.npy", images)
    made = pack(tmp_path / "a.npy", tmp_path / "made", "--encoding", encoding)
    shard = made / "samples-00001-of-00003.tfrecord"
    source = opened(made)
    flip(shard, place if place < shard.stat().st_size // 2 else 30)
    with pytest.raises(RunError, match=r"samples-00001-of-00003.tfrecord, record [01] \([23]\): .*--verify"):
        all_of(source)


def test_a_shard_that_was_cut_is_named(shards, tmp_path):
    copy = shutil.copytree(shards, tmp_path / "copy")
    source = opened(copy, paired=True, constant_values="none")
    shard = copy / "samples-00002-of-00003.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(RunError, match=r"record 6 \(19\): the file ends 3 bytes before the record does"):
        source.fetch(19)
    with pytest.raises(UserError, match="does not match the files: samples-00002"):
        opened(copy, paired=True, constant_values="none")


def test_the_fingerprint_tells_other_data_apart(data, shards, tmp_path):
    again = pack(data, tmp_path / "again", *BESIDE)
    assert bytes_of(again) == bytes_of(shards)
    other = pack(data, tmp_path / "other", *BESIDE, "--encoding", "zlib")
    found = [opened(each, paired=True, constant_values="none") for each in (shards, again, other)]
    chosen = opened(shards, paired=True, constant_values="none", conditions=("energy",))
    prints = [source.fingerprint for source in (*found, chosen)]
    assert prints[0] == prints[1] and len(set(prints)) == 3


def test_a_run_trains_on_packed_arrays(data, shards, tmp_path, capsys):
    flags = "--recipe tiny_arrays:Volumes --global-batch-size 4 --values standard --conditions energy --sample-every 0"
    made = pack(data, tmp_path / "single", "--conditions", "angle,energy")
    code = train([*flags.split(), "--data", str(made), "--run-dir", str(tmp_path / "run")])
    assert code == 0, capsys.readouterr().err
