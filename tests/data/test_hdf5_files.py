"""HDF5: data sets of every layout, several files as one, a damaged one, and plugins, which TensorFlow switches off.
Modules: data.joined_files, data.opening, data.unclear"""

import fcntl
import itertools
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from arrays_on_disk import arrays, hdf5
from hvdgan.data import open_source
from hvdgan.data.hdf5_files import Hdf5File
from hvdgan.errors import RunError, UserError
from hvdgan.settings.config import Config
from launching import run
from thread_ranks import Threads

ARRAY = np.random.default_rng(0).standard_normal((23, 6, 7, 5)).astype(np.float32)
ORDER = np.array([22, 0, 3, 3, 21, 10, 11])


def test_a_file_that_another_process_locks_is_read(tmp_path):
    data = hdf5(tmp_path, ARRAY)
    with open(tmp_path / "a.h5") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        np.testing.assert_array_equal(arrays(data).fetch_batch(ORDER)["images"], ARRAY[ORDER])


def test_a_filter_that_is_not_installed_is_named(tmp_path):
    """Of such a file only the names of the filters are read here: 32001 is Blosc, of a plugin."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((1, 6))
        plist.set_filter(32001, h5py.h5z.FLAG_OPTIONAL)
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((4, 6)), plist)
    with pytest.raises(UserError, match=r"a.h5:x: needs the HDF5 filter .*\(32001\); pip install hdf5plugin"):
        Hdf5File(f"{tmp_path}/a.h5").get("x")


def test_packed_numbers_are_refused_and_decoded_in_a_file_that_is_named_nc(tmp_path):
    stored = (ARRAY * 100).astype(np.int16)
    for name in ("a.h5", "a.nc"):
        with h5py.File(tmp_path / name, "w") as file:
            file["u"], file["v"] = stored, stored
            file["u"].attrs.update({"scale_factor": 0.01, "add_offset": np.array([5.0]), "units": "m s-1"})
            file["v"].attrs.update({"scale_factor": 1.0, "add_offset": 0})
    problem = "a.h5:u: its numbers are packed, with scale_factor 0.01, which is undone in NetCDF, and in"
    for settings in ({"data": f"{tmp_path}/a.h5:u"}, {"data": f"{tmp_path}/a.h5:v", "conditions": ("u",)}):
        with pytest.raises(UserError, match=f"{problem}.*; unpack them, or .* a name that ends in .nc"):
            arrays(**settings)
    np.testing.assert_array_equal(arrays(f"{tmp_path}/a.h5:v").fetch_batch(ORDER)["images"], stored[ORDER])
    decoded = arrays(f"{tmp_path}/a.nc:u", axes="DHWC").fetch_batch(ORDER)["images"]
    np.testing.assert_allclose(decoded.reshape(7, 6, 7, 5), stored[ORDER] * 0.01 + 5)


@pytest.mark.parametrize("kind", [h5py.string_dtype(), "S4"], ids=["of any length", "of one length"])
def test_texts_are_class_names_in_one_file_and_in_several(tmp_path, kind):
    names = np.array(["dog", "cat", "eel"] * 4, object).astype(kind)
    for number, part in enumerate((slice(0, 5), slice(5, 12))):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"], file["labels"] = ARRAY[part], names[part]
    for data, labels in ((f"{tmp_path}/?.h5:x", [1, 0, 2] * 4), (f"{tmp_path}/0.h5:x", [1, 0, 2, 1, 0])):
        source = arrays(data, axes="HWC" if ARRAY.ndim == 4 else None)
        assert (source.labels.tolist(), source.class_names) == (labels, ["cat", "dog", "eel"])


def many(folder, *, bounds=(0, 5, 12, 23), **beside):
    for number, (first, past) in enumerate(itertools.pairwise(bounds)):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["ECAL"], file["energy"], file["ground"] = ARRAY[first:past], np.arange(first, past), ARRAY[0, ..., 0]
            file["ECAL"].attrs["units"] = "MeV"
            for name, arrays_of_files in beside.items():
                del file[name]
                if (array := arrays_of_files[number]) is not None:
                    file[name] = array


def test_many_files_are_one_in_the_order_of_their_paths(tmp_path, monkeypatch):
    monkeypatch.setattr("hvdgan.data.joined_files.MOST_OPEN", 2)
    many(tmp_path)
    (tmp_path / "below").mkdir()
    (tmp_path / "notes.txt").touch()
    settings = {"conditions": ("energy",), "constants": "ground", "constant_values": "none"}
    for data in (f"{tmp_path}/*.h5:ECAL", f"{tmp_path}:ECAL"):
        source = arrays(data, **settings)
        np.testing.assert_array_equal(source.fetch_batch(ORDER)["images"], ARRAY[ORDER])
        np.testing.assert_array_equal(source.fetch_batch(np.arange(23))["images"], ARRAY)
        np.testing.assert_array_equal(source.conditions[:, 0], np.arange(23))
        np.testing.assert_array_equal(source.constants[..., 0], ARRAY[0, ..., 0])
        assert source.named(12) == f"{tmp_path}/2.h5[0]" and source.key(11) == b"1.h5[6]"
        assert source.values.images.units == ("MeV",) * 5
    (tmp_path / "2.h5").rename(tmp_path / "below" / "a.HDF")  # a folder has the files of all suffixes
    assert len(arrays(f"{tmp_path}:ECAL")) == 23


DIFFERENT = [
    ({"ECAL": [ARRAY[:5], ARRAY[:7, :5], ARRAY[:11]]}, "ECAL of {}/1.h5 has samples of shape [5, 7, 5], and"),
    ({"ECAL": [ARRAY[:5], None, ARRAY[:11]]}, "no array ECAL in {}/1.h5; it has energy, ground"),
    ({"ground": [ARRAY[0, ..., 0]] * 2 + [ARRAY[1, ..., 0]]}, "--constants ground: {}/2.h5 has other numbers"),
    ({"energy": [np.arange(5), np.arange(6), np.arange(12)]}, "energy has 6 entries in {}/1.h5, which has 7 samples"),
]


@pytest.mark.parametrize(("beside", "problem"), DIFFERENT)
def test_files_that_differ_are_named_on_every_rank(tmp_path, beside, problem):
    many(tmp_path, **beside)
    settings = {"conditions": ("energy",), "constants": "ground", "constant_values": "none"}

    errors = Threads(2).run(lambda peers: arrays(f"{tmp_path}/*.h5:ECAL", peers=peers, **settings))
    assert [type(error) for error in errors] == [UserError] * 2
    message = str(errors[0])
    assert {str(error) for error in errors} == {message}
    assert problem.format(tmp_path) in message and "\n" not in message


def test_a_damaged_chunk_is_named(tmp_path):
    data = hdf5(tmp_path, ARRAY, chunks=(1, 6, 7, 5), compression="gzip")
    with h5py.File(tmp_path / "a.h5") as file:
        found = file["group/ECAL"].id.get_chunk_info(11)
    with open(tmp_path / "a.h5", "r+b") as file:
        file.seek(found.byte_offset + 20)
        file.write(b"\xff" * 200)
    stored = Hdf5File(f"{tmp_path}/a.h5").get("group/ECAL")
    np.testing.assert_array_equal(stored.read(np.array([10, 12])), ARRAY[[10, 12]])
    with pytest.raises(RunError, match=r"a.h5:group/ECAL\[11\] cannot be read"):
        stored.read(np.array([10, 11]))
    with pytest.raises(RunError, match=r"ECAL\[11\] cannot be read"):
        arrays(data)


MAKER = """
import h5py, hdf5plugin, numpy

with h5py.File("blosc.h5", "w") as file:
    file.create_dataset("x", data=numpy.random.default_rng(0).random((12, 32, 32, 1), "f4"), **hdf5plugin.Blosc())
"""
TRAIN = "-m hvdgan.train --recipe dcgan --nf 2 --data blosc.h5:x --steps 1 --global-batch-size 4 --report never".split()


@pytest.mark.long
def test_blosc_is_read_by_its_plugin_or_named(tmp_path):
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", "plugins", "hdf5plugin"]
    assert run(install, tmp_path).returncode == 0
    assert run([sys.executable, "-c", MAKER], tmp_path, PYTHONPATH="plugins").returncode == 0
    without = run([sys.executable, *TRAIN], tmp_path)
    assert without.returncode == 2 and "needs the HDF5 filter blosc (32001); pip install hdf5plugin" in without.stderr
    for number, settings in enumerate(
        ({"PYTHONPATH": "plugins"}, {"HDF5_PLUGIN_PATH": f"{tmp_path}/plugins/hdf5plugin/plugins"})
    ):
        done = run([sys.executable, *TRAIN, "--run-dir", f"run{number}"], tmp_path, **settings)
        assert done.returncode == 0, done.stderr


def virtual(folder, array, parts=4):
    """A virtual data set whose files lie in a folder of their own, and one part in the same file."""
    (folder / "parts").mkdir()
    each = len(array) // parts
    layout = h5py.VirtualLayout(array.shape, array.dtype)
    with h5py.File(folder / "whole.h5", "w") as whole:
        whole["own"] = array[:each]
        layout[:each] = h5py.VirtualSource(".", "own", (each, *array.shape[1:]))
        for number in range(1, parts):
            name = f"parts/{number}.h5"
            with h5py.File(folder / name, "w") as file:
                file["x"] = array[number * each : (number + 1) * each]
            path = folder / name if number == 1 else name
            layout[number * each : (number + 1) * each] = h5py.VirtualSource(path, "x", (each, *array.shape[1:]))
        whole.create_virtual_dataset("x", layout)
    return f"{folder}/whole.h5:x"


@pytest.mark.parametrize(("mapped", "said"), [(40, False), (30, True)])
def test_what_no_source_of_a_virtual_data_set_holds_is_named(tmp_path, mapped, said):
    array = np.random.default_rng(0).uniform(0.2, 0.9, (40, 4, 4)).astype(np.float32)
    with h5py.File(tmp_path / "gap.h5", "w") as file:
        file["own"] = array
        layout = h5py.VirtualLayout(array.shape, array.dtype)
        layout[:mapped] = h5py.VirtualSource(".", "own", array.shape)[:mapped]
        file.create_virtual_dataset("x", layout)
    remarks = open_source(Config(data=f"{tmp_path}/gap.h5:x")).remarks
    assert any("160 of 640 numbers are not stored, and are read as 0.0" in each for each in remarks) == said
    assert said or not remarks


def test_a_lost_source_of_a_virtual_data_set_is_named(tmp_path):
    array = np.random.default_rng(0).uniform(0.5, 1, (16, 3, 3)).astype(np.float32)
    data = virtual(tmp_path, array)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/link.h5").symlink_to("../whole.h5")
    for name in (data, f"{tmp_path}/elsewhere/link.h5:x"):
        source = arrays(name)
        np.testing.assert_array_equal(source.fetch_batch(np.arange(16))["images"][..., 0], array)
        assert {os.path.basename(path) for path in source.paths} >= {"1.h5", "2.h5", "3.h5"}
    path = tmp_path / "parts/2.h5"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(RunError, match=r"x\[8\].*the file has changed"):
        source.fetch(8)
    path.rename(tmp_path / "parts/old.h5")
    with pytest.raises(UserError, match=r"whole\.h5:x: its source parts/2\.h5:x is missing or cannot be read"):
        arrays(data)
    with h5py.File(path, "w") as other:
        other["y"] = array
    with pytest.raises(UserError, match=r"its source parts/2\.h5:x is missing"):
        arrays(data)


def test_chunks_that_were_never_written_are_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, fill, chunks in (("x", 0.5, (2, 3)), ("nan", np.nan, (2, 3)), ("whole", 0.25, None)):
            file.create_dataset(name, (9, 3), np.float32, fillvalue=fill, chunks=chunks)
        file["x"][:5] = np.linspace(0, 1, 15).reshape(5, 3)
        file["nan"][:5] = file["x"][:5]
        file["sound"] = file["x"][:]
    for name, words in (("x", "2 of 5 chunks are not stored, .* read as 0.5"), ("whole", "1 of 1 chunks .* as 0.25")):
        (line,) = arrays(f"{tmp_path}/a.h5:{name}").remarks
        assert re.search(words, line)
    assert not arrays(f"{tmp_path}/a.h5:nan").remarks and not arrays(f"{tmp_path}/a.h5:sound").remarks
    shutil.copy(tmp_path / "a.h5", tmp_path / "b.h5")
    (line,) = arrays(f"{tmp_path}/*.h5:x").remarks
    assert "2 of 5" in line


def test_files_of_matlab_are_named_and_their_axes_are_said_to_be_reversed(tmp_path):
    with h5py.File(tmp_path / "a.mat", "w") as file:
        file["x"] = ARRAY
        file["x"].attrs["MATLAB_class"] = np.bytes_("single")
    for name in ("a.mat", "a.mat:x"):
        with pytest.raises(UserError, match="HDF5 .*MATLAB 7.3.*ends in .h5"):
            arrays(tmp_path / name)
    (tmp_path / "a.h5").symlink_to("a.mat")
    (line,) = arrays(f"{tmp_path}/a.h5:x").remarks
    assert "(5, 7, 6, 23)" in line


def test_a_raw_file_that_is_lost_or_cut_is_named(tmp_path, monkeypatch):
    """HDF5 gives zeros for what a cut one lacks."""
    monkeypatch.chdir(tmp_path)
    array = np.random.default_rng(0).uniform(0.2, 0.9, (40, 4, 4)).astype(np.float32)
    with h5py.File("raw.h5", "w") as file:
        file.create_dataset("x", array.shape, "f4", external=[("numbers.bin", 0, h5py.h5f.UNLIMITED)])
    for part, fits in ((array, True), (array[:30], False), (None, False)):
        Path("numbers.bin").unlink(missing_ok=True)
        if part is not None:
            part.tofile("numbers.bin")
        if fits:
            np.testing.assert_array_equal(open_source(Config(data="raw.h5:x")).fetch(39)["images"][..., 0], array[39])
            continue
        with pytest.raises(UserError, match="--data raw.h5:x: .* bytes are in numbers.bin"):
            open_source(Config(data="raw.h5:x"))


def test_all_that_is_unclear_is_refused_at_once_with_flags_that_open_the_file(tmp_path):
    fields = np.random.default_rng(0).gamma(0.3, 50, (6, 16, 16, 16)).astype(np.float32)
    with h5py.File(tmp_path / "scans.h5", "w") as file:
        numbers = {"ids": np.arange(6), "scan/density": fields, "scan/dose": fields[:, 0, 0, 0]}
        classes = np.arange(len(fields.flat)).reshape(fields.shape) % 3
        for name, array in {**numbers, "scan/mask": classes, "scan/organs": classes}.items():
            file[name] = array
    data, further = str(tmp_path / "scans.h5"), {"arrays": ("mask", "organs"), "conditions": ("dose",)}
    with pytest.raises(UserError) as caught:
        arrays(data, values=None, **further)
    flags = shlex.split(str(caught.value).partition(" for example: ")[2])
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    assert given.pop("--data") == f"{data}:scan/density"
    expected = {"--axes": "DHW", "--values": "log1p+standard", "--axes-of": "mask=DHW;organs=DHW"}
    assert given == {**expected, "--values-of": "mask=onehot:3;organs=onehot:3"}
    settings = {flag.removeprefix("--").replace("-", "_"): value for flag, value in given.items()}
    source = arrays(f"{data}:scan/density", **settings, **further)
    assert source.arrays["mask"].shape == (6, 16, 16, 16, 1) and source.conditions.shape == (6, 1)
