"""hvdgan.prepare of arrays: the same bytes for any number of processes, what the manifest says, and what is refused.

Modules: data.packing.array_facts, data.packing.array_part, data.packing.channel_statistics,
data.packing.encoding_choice.
"""

import json
import os
import shutil
import sys

import numpy as np
import pytest

from hvdgan.cli.files import replacing
from hvdgan.data.packing import shard_writer
from hvdgan.prepare import main
from launching import HAS_MPI, run
from packed import bytes_of, manifest_of, write_images
from packed_arrays import BESIDE, RNG, all_of, fields, opened, pack


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return fields(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def wanted(data):
    """What one process makes of them."""
    return bytes_of(pack(data, data.parent / "by one", *BESIDE))


def test_any_number_of_processes_makes_the_same_bytes(data, wanted, tmp_path):
    assert bytes_of(pack(data, tmp_path / "made", *BESIDE, workers=3)) == wanted


@pytest.mark.skipif(not HAS_MPI, reason="no MPI on this machine")
def test_two_ranks_under_mpirun_make_the_same_bytes(data, wanted, tmp_path):
    command = ["mpirun", "-n", "2", "--oversubscribe", sys.executable, "-m", "hvdgan.prepare"]
    done = run([*command, data, tmp_path / "made", "--shards", "3", *BESIDE], tmp_path)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path / "made") == wanted and done.stdout.count("20 samples") == 1


@pytest.mark.parametrize("number", [3, 6])
def test_the_same_command_resumes_after_a_failure_to_the_same_bytes(
    data, wanted, tmp_path, monkeypatch, capsys, number
):
    """With the encoding that the first start has chosen."""
    calls, flush = [], replacing.flush

    def full(path):
        calls.append(path)
        if len(calls) == number + 1:
            raise OSError(28, "No space left on device")
        flush(path)

    flags = [str(data), str(tmp_path / "made"), "--shards", "3", "--workers", "1", *BESIDE]
    with monkeypatch.context() as patch:
        patch.setattr(replacing, "flush", full)
        assert main(flags) == 1
    assert "No space left" in capsys.readouterr().err
    assert not (tmp_path / "made" / "manifest.json").exists()
    assert main(flags) == 0
    assert bytes_of(tmp_path / "made") == wanted and "encoding raw: " not in capsys.readouterr().out


def test_killed_processes_leave_what_the_same_command_continues(data, wanted, tmp_path):
    (tmp_path / "failing.py").write_text(
        "import os, sys\n"
        "from hvdgan.data.packing import array_part\n"
        "record_of, made = array_part.record_of, []\n"
        "def die(arrays):\n"
        "    made.append(1)\n"
        "    return os.kill(os.getpid(), 9) if len(made) == 9 else record_of(arrays)\n"
        "array_part.record_of = die\n"
        "from hvdgan.prepare import main\n"
        "sys.exit(main())\n"
    )
    done = run([sys.executable, "failing.py", data, "made", "--shards", "3", "--workers", "1", *BESIDE], tmp_path)
    assert done.returncode == -9
    assert len(list((tmp_path / "made").glob("*.tfrecord"))) == 1
    assert bytes_of(pack(data, tmp_path / "made", *BESIDE)) == wanted


def test_the_manifest_describes_the_arrays(data, wanted, tmp_path):
    manifest = json.loads(wanted["manifest.json"])
    arrays = np.load(data)
    assert manifest["format_version"] == 2 and manifest["count"] == 20 and manifest["encoding"] == "raw"
    assert (manifest["shape"], manifest["dtype"]) == ([6, 4, 2], "<f4")
    assert (manifest["input_shape"], manifest["input_dtype"]) == ([3, 2, 1], "<i2")
    assert manifest["condition_names"] == ["energy", "angle_0", "angle_1"]
    for key, name in (("statistics", "images"), ("input_statistics", "coarse")):
        flat = arrays[name].reshape(-1, manifest["shape"][-1] if name == "images" else 1).astype(np.float64)
        found = manifest[key]
        assert found["count"] == len(flat)
        for kind, number in (("min", flat.min(0)), ("max", flat.max(0)), ("mean", flat.mean(0))):
            np.testing.assert_allclose(found[kind], number, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(found["deviation"], flat.std(0), rtol=1e-12)
    names = {"manifest.json", "prepare.json"}
    assert set(manifest["files"]) == wanted.keys() - names
    assert {"conditions.npy", "constants.npy", "labels.npy"} < set(manifest["files"])


def test_units_and_names_of_channels_come_from_the_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["ECAL"] = RNG.random((6, 4, 4, 4), np.float32)
        file["ECAL"].attrs["units"] = "GeV"
        file["energy"] = RNG.random(6)
    manifest = manifest_of(
        pack(f"{tmp_path / 'a.h5'}:ECAL", tmp_path / "made", "--axes", "DHW", "--conditions", "energy")
    )
    assert (manifest["shape"], manifest["source"]["name"]) == ([4, 4, 4, 1], "a.h5:ECAL")
    assert manifest["units"] == ["GeV"] and manifest["condition_names"] == ["energy"]


def test_samples_with_nan_are_left_out_by_name_and_bounded(tmp_path, capsys):
    images = RNG.normal(size=(10, 4, 4, 1)).astype(np.float32)
    images[3, 0, 0, 0], images[8, 1:3] = np.nan, np.inf
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(10), energy=np.arange(10.0))
    flags = [str(tmp_path / "a.npz"), str(tmp_path / "made"), "--workers", "1", "--shards", "3"]
    flags += ["--conditions", "energy"]
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert "2 of 10 images cannot be read: a.npz:images[3] (1 of 16 numbers are NaN)" in error
    assert "--max-bad-fraction (now 0.01)" in error and error.count("\n") == 1
    assert main([*flags, "--max-bad-fraction", "0.2"]) == 0
    manifest = manifest_of(tmp_path / "made")
    assert manifest["failures"] == [
        ["a.npz:images[3]", "1 of 16 numbers are NaN"],
        ["a.npz:images[8]", "8 of 16 numbers are infinite"],
    ]
    assert manifest["statistics"]["count"] == 8 * 16 and np.isfinite(manifest["statistics"]["max"]).all()
    source, kept = opened(tmp_path / "made", conditions=("energy",)), np.delete(np.arange(10), [3, 8])
    np.testing.assert_array_equal(all_of(source), images[kept])
    np.testing.assert_array_equal(source.labels, kept)
    np.testing.assert_array_equal(source.conditions[:, 0], kept)
    assert [source.key(index) for index in range(8)] == [str(index).encode() for index in kept]


def test_a_folder_of_npy_files_is_packed_with_its_classes(tmp_path):
    for number in range(6):
        path = tmp_path / "data" / f"kind {number % 2}" / f"{number}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, RNG.normal(size=(3, 5)))
    (tmp_path / "table.csv").write_text(
        "file,energy\n" + "".join(f"kind {number % 2}/{number}.npy,{number}\n" for number in range(6))
    )
    made = pack(tmp_path / "data", tmp_path / "made", "--condition-table", str(tmp_path / "table.csv"))
    source, original = opened(made, conditions=("energy",)), opened(tmp_path / "data")
    np.testing.assert_array_equal(all_of(source), all_of(original))
    assert source.class_names == ["kind 0", "kind 1"] and source.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert source.conditions[:, 0].tolist() == [0, 2, 4, 1, 3, 5] and source.key(1) == b"kind 0/2.npy"


# duplicates


def with_duplicates(folder):
    """24 pairs: 4, 9 and 23 equal earlier ones; 5 and 6 do so only in their inputs, or in their samples."""
    images = RNG.normal(size=(24, 6, 4, 2)).astype(np.float32)
    coarse = RNG.integers(0, 900, (24, 3, 2), np.int16)
    for number, its in ((4, 1), (9, 4), (23, 12)):
        images[number], coarse[number] = images[its], coarse[its]
    images[6], coarse[5], images[7, 0, 0, 0] = images[1], coarse[1], np.nan
    path = folder / "again.npz"
    np.savez(path, images=images, coarse=coarse, labels=np.arange(24), energy=np.arange(24.0), ground=images[0, ..., 0])
    return path, images, np.delete(np.arange(24), [4, 7, 9, 23])


@pytest.mark.parametrize("encoding", ["raw", "zlib"])
def test_duplicates_are_left_out_with_their_labels_and_conditions(tmp_path, capsys, encoding):
    data, images, kept = with_duplicates(tmp_path)
    flags = ["--pairs", "--inputs", "coarse", "--conditions", "energy", "--constants", "ground"]
    flags += ["--dedup", "--max-bad-fraction", "0.1", "--encoding", encoding]
    made = pack(data, tmp_path / "made", *flags)
    assert "left out: 1 broken, 0 small, 3 duplicates" in capsys.readouterr().out
    assert bytes_of(pack(data, tmp_path / "by three", *flags, workers=3)) == bytes_of(made)
    facts = [json.loads(path.read_text()) for path in sorted(made.glob("samples-*.json"))]
    assert [pair for one in facts for pair in one["duplicates"]] == [["4", "1"], ["9", "1"], ["23", "12"]]
    manifest = manifest_of(made)
    assert (manifest["count"], manifest["duplicates"]) == (20, 3)
    flat = images[kept].reshape(-1, 2).astype(np.float64)
    assert manifest["statistics"]["count"] == len(flat) == manifest["input_statistics"]["count"] * 4
    np.testing.assert_allclose(manifest["statistics"]["mean"], flat.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(manifest["statistics"]["deviation"], flat.std(axis=0), rtol=1e-12)
    source = opened(made, paired=True, conditions=("energy",), constant_values="none")
    original = opened(data, paired=True, inputs="coarse", conditions=("energy",))
    np.testing.assert_array_equal(all_of(source), all_of(original)[kept])
    np.testing.assert_array_equal(source.labels, kept)
    np.testing.assert_array_equal(source.conditions[:, 0], kept)
    assert main(["--verify", str(made)]) == 0


@pytest.mark.skipif(not HAS_MPI, reason="no MPI on this machine")
def test_two_ranks_leave_out_the_same_duplicates(tmp_path):
    data, *_ = with_duplicates(tmp_path)
    flags = ["--dedup", "--max-bad-fraction", "0.1"]
    alone = pack(data, tmp_path / "alone", *flags)
    command = ["mpirun", "-n", "2", "--oversubscribe", sys.executable, "-m", "hvdgan.prepare", data, tmp_path / "made"]
    done = run([*command, "--shards", "3", *flags], tmp_path)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path / "made") == bytes_of(alone)


def test_a_crash_among_duplicates_is_resumed_to_the_same_bytes(tmp_path, monkeypatch):
    """When the second of three shards loses its duplicates."""
    data, *_ = with_duplicates(tmp_path)
    flags = ["--dedup", "--max-bad-fraction", "0.1"]
    wanted = bytes_of(pack(data, tmp_path / "whole", *flags))
    with monkeypatch.context() as patch:
        command = [str(data), str(tmp_path / "cut"), "--shards", "3", "--workers", "1", *flags]
        patch.setattr(shard_writer, "without_duplicates", without_second(shard_writer.without_duplicates))
        assert main(command) == 1
    assert len(list((tmp_path / "cut").glob("*.tfrecord"))) == 1
    assert bytes_of(pack(data, tmp_path / "cut", *flags)) == wanted


def without_second(work):
    """A function that fails on a full disk at the second shard."""

    def fail(path, *rest):
        if "00001" in path.name:
            raise OSError(28, "No space left on device")
        work(path, *rest)

    return fail


def test_a_minimum_size_that_all_samples_have_changes_no_record(data, wanted, tmp_path):
    made = bytes_of(pack(data, tmp_path / "made", *BESIDE, "--min-size", "4"))
    records = [name for name in wanted if name.endswith(".tfrecord")]
    assert records and all(made[name] == wanted[name] for name in records)


# the encoding


def smooth():
    """Fields whose exponents are almost the same, with many zeros, as physics has them."""
    values = RNG.random((12, 16, 16, 1), np.float32)
    return np.where(values > 0.7, values, 0).astype(np.float32)


def test_auto_compresses_what_becomes_smaller_and_tells_the_cost(tmp_path, capsys):
    np.save(tmp_path / "sparse.npy", smooth())
    np.save(tmp_path / "noise.npy", RNG.integers(0, 2**32, (12, 16, 16, 1), np.uint32))
    for name, encoding in (("sparse", "zlib"), ("noise", "raw")):
        made = pack(tmp_path / f"{name}.npy", tmp_path / name)
        said, manifest = capsys.readouterr().out, manifest_of(made)
        assert manifest["encoding"] == encoding and f"hvdgan: encoding {encoding}: of 12 records" in said
        assert "MB/s per core" in said and manifest["encoding_sample"]["raw_bytes"] == 12 * 1024
        chosen = manifest["encoding_sample"]["zlib_bytes"] <= 0.9 * 12 * 1024
        assert chosen == (encoding == "zlib")


def test_both_encodings_hold_the_same_numbers_and_are_verified(tmp_path, capsys):
    np.save(tmp_path / "a.npy", smooth())
    made = {kind: pack(tmp_path / "a.npy", tmp_path / kind, "--encoding", kind) for kind in ("raw", "zlib")}
    np.testing.assert_array_equal(all_of(opened(made["raw"])), all_of(opened(made["zlib"])))
    shards = {kind: (folder / "samples-00001-of-00003.tfrecord") for kind, folder in made.items()}
    assert shards["zlib"].stat().st_size < 0.7 * shards["raw"].stat().st_size
    for kind, folder in made.items():
        assert main(["--verify", str(folder)]) == 0
        content = bytearray(shards[kind].read_bytes())
        content[200] ^= 1
        shards[kind].write_bytes(content)
        capsys.readouterr()
        assert main(["--verify", str(folder)]) == 1
        assert "samples-00001-of-00003.tfrecord, record 0 (4): its checksum" in capsys.readouterr().out


# mistakes


@pytest.fixture
def place(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    shutil.copy(data, "a.npz")
    np.save("counts.npy", np.ones((3, 4, 4), np.uint16))
    np.save("complex.npy", np.ones((3, 4, 4), np.complex64))
    np.save("flat.npy", np.ones((3, 7), np.float32))
    np.save("four.npy", np.ones((3, 8, 8, 4), np.float32))
    np.save("pictures.npy", np.ones((3, 8, 6, 3), np.uint8))
    write_images(tmp_path / "images", 4)
    pack("a.npz", tmp_path / "made")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            "a.npz new --encoding png",
            "--encoding png: a.npz holds arrays, whose numbers are kept as they are; expected",
        ),
        ("images new --image-size 8 --fit pad --encoding zlib", "--encoding zlib: images holds pictures; expected png"),
        ("a.npz new --min-size 5", "--min-size 5: no sample is left: all samples of a.npz have shape (6, 4, 2), whose"),
        ("flat.npy new --min-size 3", "--min-size 3: the samples of flat.npy are vectors, without sides"),
        ("a.npz made --shards 3 --dedup", "made: begun with --dedup False, and this command has True"),
        ("a.npz new --image-size 8", "--image-size: resizes 8-bit pictures"),
        ("a.npz new --fit crop", "--fit crop: resizes 8-bit pictures"),
        ("a.npz new --inputs coarse", "--inputs coarse: packs an input with each sample; add --pairs"),
        ("a.npz new --pairs", "a.npz: the recipe takes pairs, and there is no array `inputs`"),
        ("a.npz new --conditions mass", "--conditions: no array mass in a.npz; it has "),
        ("a.npz new --constants labels", "--constants labels: shape (20,); expected (6, 4)"),
        ("complex.npy new", "complex.npy: numbers of type complex64"),
        ("four.npy new", "four.npy: array of shape (3, 8, 8, 4): red, green, blue and opacity, or four fields?"),
        ("images new --image-size 8 --fit crop --axes HW", "--axes HW: is for arrays, and images holds pictures"),
        (
            "images new --image-size 8 --fit crop --conditions e",
            "--conditions e: name their file with --condition-table",
        ),
        ("images new --image-size 8", "images: class 0/000.png has 12 x 10 pixels, and 8 x 8 are wanted"),
        ("pictures.npy new --image-size 8", "pictures.npy: each picture has 6 x 8 pixels, and 8 x 8 are wanted"),
        ("a.npz made --shards 3 --axes CHW", "made: begun with --axes None, and this command has CHW"),
        (
            "a.npz made --shards 3 --conditions energy",
            "made: begun with --conditions None, and this command has energy",
        ),
        ("counts.npy made --shards 3", "made: begun from other images"),
        ("a.npz made --shards 3 --encoding raw", "made: begun with --encoding auto, and this command has raw"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(place, capsys, arguments, complaint):
    capsys.readouterr()
    before = bytes_of(place)
    assert main([*arguments.split(), "--workers", "1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hvdgan: ") and complaint in error and error.count("\n") == 1
    assert bytes_of(place) == before


def test_integers_need_no_map_to_be_packed(place):
    manifest = manifest_of(pack("counts.npy", place / "new"))
    assert (manifest["shape"], manifest["dtype"]) == ([4, 4, 1], "<u2")


# rectangular pictures


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_rectangular_pictures_are_those_of_training(tmp_path, fit):
    from hvdgan.cli.config import Config
    from hvdgan.data import open_source

    images = write_images(tmp_path / "images", 6)
    made = tmp_path / "made"
    assert main([str(images), str(made), "--image-size", "6,9", "--fit", fit, "--workers", "1"]) == 0
    assert manifest_of(made)["image_size"] == [6, 9] and manifest_of(made)["settings"]["fit"] == fit
    shards = open_source(Config(data=str(made)))
    folder = open_source(Config(data=str(images), image_size=(6, 9), fit=fit))
    assert shards.layout.shape == (6, 9, 3)
    np.testing.assert_array_equal(all_of(shards), all_of(folder))


def test_a_folder_that_was_begun_before_fit_existed_is_finished_by_cropping(tmp_path):
    """By the same command; the bytes of the images are those that it would have made."""
    images, cut = write_images(tmp_path / "images", 6), tmp_path / "cut"
    flags = ["--image-size", "8", "--shards", "2", "--workers", "1"]
    assert main([str(images), str(tmp_path / "whole"), *flags, "--fit", "crop"]) == 0
    assert main([str(images), str(cut), *flags, "--fit", "crop"]) == 0
    for name in ("manifest.json", "images-00001-of-00002.json", "images-00001-of-00002.tfrecord"):
        (cut / name).unlink()
    begun = json.loads((cut / "prepare.json").read_text())
    old = ("image_size", "channels", "shards", "pairs", "encoding", "min_size", "dedup")
    begun["settings"] = {name: begun["settings"][name] for name in old}
    (cut / "prepare.json").write_text(json.dumps(begun))
    assert main([str(images), str(cut), *flags]) == 0
    for name in os.listdir(cut):
        if name not in ("manifest.json", "prepare.json"):
            assert (cut / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert "fit" not in manifest_of(cut)["settings"]
