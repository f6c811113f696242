"""hvdgan.prepare packs conditions with pictures: a run on the shards sees those of a run on the original.

Modules: data.packing.array_facts.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig, TFRecordConfig
from hvdgan.cli.errors import UserError
from hvdgan.data import hold_out, open_source
from hvdgan.prepare import main
from hvdgan.train import main as train
from packed import bytes_of, manifest_of, names_in, tarred, write_images, zipped
from reading import batches_of
from tfrecord_files import IMAGES, png, write

SMALL = ["--image-size", "8", "--fit", "crop"]
BOTH = ("energy", "theta")


def opened(data, *, paired=False, tfrecord=None, **arrays):
    settings = ArrayConfig(**arrays)
    config = Config(data=str(data), image_size=8, fit="crop", arrays=settings, tfrecord=tfrecord or TFRecordConfig())
    return open_source(config, paired=paired)


def pack(source, target, *flags, workers=1):
    assert main([str(source), str(target), *SMALL, "--shards", "3", "--workers", str(workers), *flags]) == 0
    return target


def by_file(images, path):
    """A table by file, in another order, whose numbers no float32 holds exactly."""
    names = sorted(str(each.relative_to(images)) for each in images.rglob("*.*"))
    rows = [f"{number / 3},{name},{-number / 7}" for number, name in enumerate(names)]
    path.write_text("\n".join(["energy,file,theta", *reversed(rows)]) + "\n")
    return path


def in_order(path, count):
    path.write_text("energy,theta\n" + "".join(f"{number / 3},{-number / 7}\n" for number in range(count)))
    return path


@pytest.fixture
def images(tmp_path):
    return write_images(tmp_path / "images", 12)


def by_name(source):
    """The conditions of each image by the image's name."""
    return {source.key(index): source.conditions[index].tolist() for index in range(len(source))}


@pytest.mark.parametrize("wrap", [None, zipped, tarred])
def test_a_table_by_file_is_packed_with_a_folder_or_an_archive(images, tmp_path, wrap):
    table = by_file(images, tmp_path / "c.csv")
    data = images if wrap is None else wrap(images, tmp_path / "archive", prefix="wrapped/")
    made = pack(data, tmp_path / "made", "--condition-table", str(table))
    source, original = opened(made, conditions=BOTH), opened(images, condition_table=table)
    assert source.values.conditions.channels == BOTH and len(source) == 12
    np.testing.assert_array_equal(source.conditions, original.conditions)
    assert by_name(source) == by_name(original)
    assert opened(made).conditions is None
    assert opened(made, conditions=("theta",)).conditions[:, 0].tolist() == original.conditions[:, 1].tolist()
    assert manifest_of(made)["condition_names"] == list(BOTH) and main(["--verify", str(made)]) == 0


def test_images_that_are_left_out_take_their_conditions_with_them(images, tmp_path, capsys):
    """Broken ones, small ones and duplicates; the bytes are those of any number of processes."""
    Image.open(images / "class 0" / "000.png").save(images / "class 0" / "again.bmp")
    Image.new("RGB", (30, 5), "red").save(images / "class 1" / "000 flat.png")
    cut = images / "class 1" / "009.png"
    cut.write_bytes(cut.read_bytes()[:100])
    table = by_file(images, tmp_path / "c.csv")
    flags = ["--condition-table", str(table), "--dedup", "--min-size", "8", "--max-bad-fraction", "0.5"]
    made = pack(images, tmp_path / "made", *flags)
    assert "left out: 1 broken, 1 small, 1 duplicates" in capsys.readouterr().out
    assert bytes_of(pack(images, tmp_path / "by three", *flags, workers=3)) == bytes_of(made)
    expected = by_name(opened(images, condition_table=table))
    found = by_name(opened(made, conditions=BOTH))
    assert len(found) == 11 and found == {name: expected[name] for name in found}


def test_a_table_in_order_belongs_to_all_images_of_the_listing(images, tmp_path, capsys):
    table = in_order(tmp_path / "c.csv", 12)
    made = pack(images, tmp_path / "made", "--condition-table", str(table), "--conditions", "theta")
    source = opened(made, conditions=("theta",))
    np.testing.assert_array_equal(source.conditions[:, 0], [-number / 7 for number in range(12)])
    assert by_name(source) == by_name(opened(images, condition_table=table, conditions=("theta",)))


RECORDS = {
    "features": (["--conditions", "energy,theta"], {"conditions": BOTH}),
    "table": (["--condition-table", "c.csv"], {"condition_table": Path("c.csv")}),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_features_of_tfrecords_are_packed_with_their_images(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    numbers = [{"energy": number / 3, "theta": number} for number in range(6)]
    records = [{"image": png(image), **each} for image, each in zip(IMAGES, numbers, strict=True)]
    write(tmp_path / "a.tfrecord", records)
    in_order(tmp_path / "c.csv", 6)
    flags, settings = RECORDS[kind]
    made = pack("a.tfrecord", tmp_path / "made", *flags)
    assert bytes_of(pack("a.tfrecord", tmp_path / "by two", *flags, workers=2)) == bytes_of(made)
    source, original = opened(made, conditions=BOTH), opened("a.tfrecord", **settings)
    assert by_name(source) == by_name(original) and len(source) == 6
    np.testing.assert_array_equal(source.fetch_batch(np.arange(6)), IMAGES)
    held = [hold_out(each, 0.5)[1] for each in (source, original)]
    np.testing.assert_array_equal(held[0].conditions, held[1].conditions)
    assert 0 < len(held[0]) < 6


@pytest.mark.parametrize("paired", [False, True])
def test_arrays_beside_8_bit_pictures_are_conditions(tmp_path, paired):
    """In training and in shards; pictures stay pictures, of which too small ones are refused."""
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), np.uint8)
    angles = np.random.default_rng(1).random((9, 2))
    beside = {"inputs": pixels[::-1]} if paired else {}
    np.savez(tmp_path / "a.npz", images=pixels, energy=np.arange(9) / 3, angle=angles, **beside)
    flags = ["--conditions", "energy,angle", "--min-size", "8", *(["--pairs"] if paired else [])]
    made = pack(tmp_path / "a.npz", tmp_path / "made", *flags)
    original = opened(tmp_path / "a.npz", conditions=("energy", "angle"), paired=paired)
    source = opened(made, conditions=("energy", "angle"), paired=paired)
    assert source.is_pictures and original.is_pictures
    np.testing.assert_array_equal(original.conditions, np.column_stack([np.arange(9) / 3, angles]))
    np.testing.assert_array_equal(source.conditions, original.conditions)
    np.testing.assert_array_equal(source.fetch_batch(np.arange(9)), original.fetch_batch(np.arange(9)))
    assert source.values == original.values


def test_batches_on_any_number_of_ranks_are_those_of_the_folder(images, tmp_path):
    table = by_file(images, tmp_path / "c.csv")
    made = pack(images, tmp_path / "made", "--condition-table", str(table))
    settings = {"global_batch_size": 6, "start_step": 3}
    wanted = next(iter(batches_of(opened(images, condition_table=table), **settings)))
    for size in (1, 2, 3):
        slices = []
        for rank in range(size):
            with batches_of(opened(made, conditions=BOTH), rank=rank, size=size, **settings) as some:
                slices.append(next(some))
        for name in ("images", "conditions", "index"):
            np.testing.assert_array_equal(np.concatenate([part[name] for part in slices]), wanted[name])


def metrics(run_dir):
    varying = (
        "images_per_sec",
        "step_seconds",
        "wait_seconds",
        "between_seconds",
        "wait_seconds_max",
        "wait_rank",
        "time",
    )
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in varying} for line in lines]


def test_a_run_on_the_shards_is_that_on_the_folder(images, tmp_path, monkeypatch):
    """To the last bit of each loss, with statistics of the conditions, held-out images and their evaluation."""
    monkeypatch.chdir(tmp_path)
    table = by_file(images, tmp_path / "c.csv")
    pack(images, tmp_path / "made", "--condition-table", str(table))
    flags = ["--recipe", "tiny_arrays:Volumes", "--image-size", "8", "--fit", "crop", "--global-batch-size", "4"]
    flags += ["--log-every", "1", "--holdout", "0.6", "--eval-every", "2", "--conditions", "energy,theta"]
    assert train([*flags, "--data", "images", "--condition-table", "c.csv", "--run-dir", "of the folder"]) == 0
    assert train([*flags, "--data", "made", "--run-dir", "of the shards"]) == 0
    found = metrics(tmp_path / "of the shards")
    assert found == metrics(tmp_path / "of the folder") and "judge/energy" in found[0]


# mistakes


def test_shards_without_conditions_say_so(images, tmp_path):
    made = pack(images, tmp_path / "made")
    with pytest.raises(UserError, match="^--conditions energy: the conditions that were packed into .* are none; pack"):
        opened(made, conditions=("energy",))
    assert names_in(made) == [key.decode() for key in map(opened(made).key, range(12))]
    assert "condition_names" not in manifest_of(made)
    table = by_file(images, tmp_path / "c.csv")
    assert by_name(opened(made, condition_table=table)) == by_name(opened(images, condition_table=table))


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("new --conditions energy", "--conditions energy: name their file with --condition-table"),
        ("new --condition-table short.csv", "--condition-table short.csv: 11 rows, and the data have 12 samples"),
        ("new --condition-table c.csv --conditions mass", "--condition-table c.csv: no column mass"),
        ("new --condition-table none.csv", "--condition-table none.csv: cannot be read as CSV"),
        ("made --condition-table c.csv", "made: begun with --condition-table other.csv, and this command has c.csv"),
        ("made --condition-table other.csv", "made: begun from other images: fingerprint"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(images, tmp_path, monkeypatch, capsys, flags, complaint):
    monkeypatch.chdir(tmp_path)
    in_order(tmp_path / "short.csv", 11)
    by_file(images, tmp_path / "c.csv")
    pack("images", "made", "--condition-table", str(in_order(tmp_path / "other.csv", 12).name))
    (tmp_path / "other.csv").write_text((tmp_path / "other.csv").read_text().replace("3.6", "3.7"))
    before = bytes_of(tmp_path)
    capsys.readouterr()
    assert main(["images", *flags.split(), *SMALL, "--shards", "3", "--workers", "1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hvdgan: ") and complaint in error and error.count("\n") == 1
    assert bytes_of(tmp_path) == before
