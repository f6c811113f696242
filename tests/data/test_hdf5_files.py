"""HDF5: data sets of every layout, several files as one, and what happens when a file changes.

Modules: data.arrays.joined_files, data.base.raw_files, data.base.bounded_cache, data.sources.array_containers.
"""

import itertools
import os

import h5py
import numpy as np
import pytest

from arrays_on_disk import arrays, hdf5, wrong_reads_of_threads
from hvdgan.cli.errors import RunError, UserError
from hvdgan.data import holdout
from hvdgan.data.arrays.hdf5_files import Hdf5File
from hvdgan.data.base.bounded_cache import BoundedCache
from thread_ranks import Threads

ARRAY = np.random.default_rng(0).standard_normal((23, 6, 7, 5)).astype(np.float32)
ORDER = np.array([22, 0, 3, 3, 21, 10, 11])
LAYOUTS = {
    "contiguous": {},
    "one sample in a chunk": {"chunks": (1, 6, 7, 5)},
    "four samples": {"chunks": (4, 6, 7, 5)},
    "parts of samples": {"chunks": (4, 3, 4, 2)},
    "gzip": {"chunks": (1, 6, 7, 5), "compression": "gzip"},
    "gzip, shuffled, parts": {"chunks": (4, 4, 4, 3), "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": (5, 6, 7, 5), "compression": "lzf"},
    "checksums": {"chunks": (4, 4, 4, 3), "compression": "gzip", "fletcher32": True},
    "growing": {"chunks": (4, 6, 7, 5), "maxshape": (None, 6, 7, 5)},
}


def test_a_folder_gives_the_samples_of_all_its_hdf5_files_whatever_their_suffix(tmp_path):
    (tmp_path / "below").mkdir()
    for number, name in enumerate(("a.h5", "b.hdf5", "below/c.H5", "below/d.HDF")):
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = ARRAY[5 * number : 5 * number + 5]
    (tmp_path / "notes.txt").touch()
    source = arrays(tmp_path)
    assert len(source) == 20
    np.testing.assert_array_equal(source.fetch_batch(np.arange(20)), ARRAY[:20])


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", ["<f4", ">f8"])
def test_every_layout_gives_the_numbers_of_h5py(tmp_path, options, dtype):
    source = arrays(hdf5(tmp_path, ARRAY.astype(dtype), **options))
    np.testing.assert_array_equal(source.fetch_batch(ORDER), ARRAY[ORDER])
    assert source.dtype == np.dtype(dtype).newbyteorder("=")


@pytest.mark.parametrize("place", ["library", "memory"])
def test_what_is_not_decoded_here_is_read_through_the_library(tmp_path, monkeypatch, place):
    """A user block before the file, numbers of 12 bits, chunks that were never written, and a virtual data set."""
    if place == "library":
        monkeypatch.setattr("hvdgan.data.arrays.hdf5_files.MOST_CHUNKS", 0)
    small = np.arange(10 * 4 * 4, dtype=np.int16).reshape(10, 4, 4, 1)
    twelve = h5py.h5t.STD_I16LE.copy()
    twelve.set_precision(12)
    twelve.set_offset(4)
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file["plain"] = small
        file.create_dataset("gzip", data=small, chunks=(2, 4, 4, 1), compression="gzip")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        space = h5py.h5s.create_simple(small.shape)
        h5py.h5d.create(file.id, b"twelve", h5py.h5t.TypeID(twelve.id), space).write(space, space, small)
        file.create_dataset("unwritten", (10, 4, 4, 1), "f4", chunks=(1, 4, 4, 1), fillvalue=7)
        file.create_dataset("unwritten gzip", (10, 4, 4, 1), "f4", chunks=(2, 4, 4, 1), compression="gzip")
        file.create_dataset("unwritten plain", (10, 4, 4, 1), "f4")
        file.create_dataset("some", (10, 4, 4, 1), "i2", chunks=(1, 4, 4, 1))[4] = small[4]
        layout = h5py.VirtualLayout((10, 4, 4, 1), "i2")
        layout[:] = h5py.VirtualSource(tmp_path / "a.h5", "plain", small.shape)
        file.create_virtual_dataset("virtual", layout)
    some = np.zeros_like(small)
    some[4] = small[4]
    order = np.array([9, 4, 5, 0])
    expected = {"twelve": small, "unwritten": small * 0 + 7, "some": some, "virtual": small}
    expected |= {"unwritten gzip": small * 0, "unwritten plain": small * 0}
    for name, numbers in expected.items():
        np.testing.assert_array_equal(Hdf5File(f"{tmp_path}/b.h5").get(name).read(order), numbers[order], name)
    for name in ("plain", "gzip"):
        np.testing.assert_array_equal(arrays(f"{tmp_path}/a.h5:{name}").fetch_batch(order), small[order], name)


# Numbers of other files, and numbers that mean others


@pytest.mark.parametrize("options", [LAYOUTS["contiguous"], LAYOUTS["four samples"], LAYOUTS["gzip"]])
@pytest.mark.parametrize("suffix", ["h5", "nc"])
def test_a_link_to_another_file_is_refused_with_the_name_of_that_file(tmp_path, options, suffix):
    """Its data sets lie at places of the other file, where this one holds other numbers."""
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file.create_dataset("run/x", data=ARRAY, **options)
    with h5py.File(tmp_path / f"all.{suffix}", "w") as file:
        file["own"] = ARRAY + 1
        file["x"], file["group"] = h5py.ExternalLink("part.h5", "/run/x"), h5py.ExternalLink("part.h5", "/run")
        file["here"] = h5py.SoftLink("/own")
    problem = r"all\.\w+:{}: a link to another file; name that one, as in --data .*part\.h5:run/x$"
    of_group = problem.format("group/x") if suffix == "h5" else r"all\.nc:group: cannot be read by xarray: [^\n]*$"
    for name, expected in (("x", problem.format("x")), ("group/x", of_group)):
        with pytest.raises(UserError, match=expected):
            arrays(f"{tmp_path}/all.{suffix}:{name}")
    np.testing.assert_array_equal(Hdf5File(f"{tmp_path}/all.{suffix}").get("here").read(ORDER), ARRAY[ORDER] + 1)


def test_a_virtual_data_set_needs_all_its_sources(tmp_path):
    """The library gives fill values in place of those that are missing."""
    (tmp_path / "parts").mkdir()
    for number in range(2):
        with h5py.File(tmp_path / "parts" / f"{number}.h5", "w") as file:
            file["x"] = ARRAY[10 * number : 10 * number + 10]
    with h5py.File(tmp_path / "all.h5", "w") as file:
        layout = h5py.VirtualLayout((20, 6, 7, 5), "f4")
        for number in range(2):
            layout[10 * number : 10 * number + 10] = h5py.VirtualSource(f"parts/{number}.h5", "x", (10, 6, 7, 5))
        file.create_virtual_dataset("x", layout, fillvalue=0.5)
        nested = h5py.VirtualLayout((20, 6, 7, 5), "f4")
        nested[:] = h5py.VirtualSource(".", "x", (20, 6, 7, 5))
        file.create_virtual_dataset("nested", nested)
    order = np.array([19, 3, 3])
    for name in ("x", "nested"):
        np.testing.assert_array_equal(arrays(f"{tmp_path}/all.h5:{name}").fetch_batch(order), ARRAY[order])
    stamp = arrays(f"{tmp_path}/all.h5:nested").stamp()
    os.utime(tmp_path / "parts" / "1.h5", (1, 1))
    assert arrays(f"{tmp_path}/all.h5:nested").stamp() != stamp
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["y"] = ARRAY[:10]
    (tmp_path / "other.h5").replace(tmp_path / "parts" / "1.h5")
    for missing in ("data set x in the file parts/1.h5", "file parts/1.h5"):
        for name in ("x", "nested"):
            with pytest.raises(UserError, match=f"all.h5:x: a virtual data set, whose {missing} is missing; put it"):
                arrays(f"{tmp_path}/all.h5:{name}")
        (tmp_path / "parts" / "1.h5").unlink(missing_ok=True)


def virtual_sets(folder):
    """Two files with a virtual data set each, which shows the numbers of a file of its own."""
    (folder / "parts").mkdir()
    for number in range(2):
        with h5py.File(folder / "parts" / f"{number}.h5", "w") as file:
            file["x"] = ARRAY[10 * number : 10 * number + 10]
        layout = h5py.VirtualLayout((10, 6, 7, 5), "f4")
        layout[:] = h5py.VirtualSource(f"parts/{number}.h5", "x", (10, 6, 7, 5))
        with h5py.File(folder / f"v{number}.h5", "w") as file:
            file.create_virtual_dataset("x", layout)
    return f"{folder}/v*.h5:x"


def test_the_stamp_of_joined_virtual_data_sets_covers_their_sources(tmp_path):
    data = virtual_sets(tmp_path)

    def stamps():
        found = {}

        def work(peers):
            found[peers.rank] = arrays(data, peers=peers).stamp()

        assert Threads(2).run(work) == [None, None]
        assert found[0] == found[1]
        return found[0]

    before = stamps()
    assert stamps() == before
    os.utime(tmp_path / "parts" / "1.h5", (1, 1))
    assert stamps() != before


def test_the_sources_of_a_virtual_data_set_are_opened_again_only_if_they_change(tmp_path, monkeypatch):
    monkeypatch.setattr("hvdgan.data.arrays.joined_files.MOST_OPEN", 1)
    data, opened, open_file = virtual_sets(tmp_path), [], h5py.File

    def counted(path, *options, **more):
        opened.append(os.path.relpath(path, tmp_path))
        return open_file(path, *options, **more)

    monkeypatch.setattr(h5py, "File", counted)
    source = arrays(data)
    for index in (0, 19, 0, 19, 0):
        np.testing.assert_array_equal(source.fetch(index), ARRAY[index])
    assert opened.count("v0.h5") > 2
    assert opened.count("parts/0.h5") == opened.count("parts/1.h5") == 1
    os.utime(tmp_path / "parts" / "1.h5", (1, 1))
    source.fetch(19)
    assert opened.count("parts/1.h5") == 2
    source.fetch(0)
    (tmp_path / "parts" / "1.h5").unlink()
    with pytest.raises(RunError, match="v1.h5:x: a virtual data set, whose file parts/1.h5 is missing"):
        source.fetch(19)


def test_packed_numbers_are_refused_and_decoded_in_a_file_that_is_named_nc(tmp_path):
    stored = (ARRAY * 100).astype(np.int16)
    for name in ("a.h5", "a.nc"):
        with h5py.File(tmp_path / name, "w") as file:
            file["u"], file["v"] = stored, stored
            file["u"].attrs.update({"scale_factor": 0.01, "add_offset": np.array([5.0]), "units": "m s-1"})
            file["v"].attrs.update({"scale_factor": 1.0, "add_offset": 0})
            file["w"] = stored
            file["w"].attrs["scale_factor"] = [1, 2]
    problem = "a.h5:u: its numbers are packed, with scale_factor 0.01 and add_offset 5, which is not undone in HDF5"
    for settings in ({"data": f"{tmp_path}/a.h5:u"}, {"data": f"{tmp_path}/a.h5:v", "conditions": ("u",)}):
        with pytest.raises(UserError, match=f"{problem}.*; unpack them, or, .* a name that ends in .nc$"):
            arrays(**settings)
    with pytest.raises(UserError, match="a.h5:w: its numbers are packed, with scale_factor 1, 2, which is not undone"):
        arrays(f"{tmp_path}/a.h5:w")
    np.testing.assert_array_equal(arrays(f"{tmp_path}/a.h5:v").fetch_batch(ORDER), stored[ORDER])
    decoded = arrays(f"{tmp_path}/a.nc:u", axes="DHWC").fetch_batch(ORDER)
    np.testing.assert_allclose(decoded.reshape(7, 6, 7, 5), stored[ORDER] * 0.01 + 5)


@pytest.mark.parametrize("attribute", ["_FillValue", "missing_value"])
def test_numbers_that_mark_missing_ones_are_refused_where_they_occur(tmp_path, attribute):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, last in (("good", ARRAY[7, 5, 6, 4]), ("x", -9999)):
            file[name] = ARRAY
            file[name].attrs[attribute] = np.float32(-9999)
            file[name][7, 5, 6, 4] = last
    np.testing.assert_array_equal(arrays(f"{tmp_path}/a.h5:good").fetch_batch(ORDER), ARRAY[ORDER])
    problem = rf"a\.h5:x\[7\]: x has the number -9999, which its attribute {attribute} declares to be missing; "
    with pytest.raises(UserError, match=problem):
        arrays(f"{tmp_path}/a.h5:x")


@pytest.mark.parametrize("options", [LAYOUTS["contiguous"], LAYOUTS["gzip, shuffled, parts"], LAYOUTS["lzf"]])
def test_several_threads_read_the_same_numbers(tmp_path, options):
    source = arrays(hdf5(tmp_path, ARRAY, **options))
    assert not wrong_reads_of_threads(source, ARRAY, 20)


def test_a_forked_process_reads_on(tmp_path):
    source = arrays(hdf5(tmp_path, ARRAY, **LAYOUTS["gzip, shuffled, parts"]))
    source.fetch_batch(ORDER)
    if (child := os.fork()) == 0:
        os._exit(0 if np.array_equal(source.fetch_batch(ORDER), ARRAY[ORDER]) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_names_units_and_channels_conditions_labels_inputs_and_constants(tmp_path):
    with h5py.File(tmp_path / "showers.h5", "w") as file:
        samples = file.create_dataset("run/ECAL", data=ARRAY)
        samples.attrs["units"] = "MeV"
        samples.attrs["channels"] = list("abcde")
        file["energy"] = np.arange(23) * 10.0
        file["energy"].attrs["unit"] = "GeV"
        file["labels"] = np.arange(23) % 3
        file["coarse"] = ARRAY[:, ::3, :1, :2]
        file["coarse"].attrs["units"] = ["K", "Pa"]
        file["ground"] = ARRAY[0, ..., :2]
    settings = {"conditions": ("energy",), "inputs": "coarse", "input_values": "none"}
    settings |= {"constants": "ground", "constant_values": "none"}
    source = arrays(f"{tmp_path}/showers.h5:run/ECAL", paired=True, **settings)
    values = source.values
    assert (values.images.channels, values.images.units) == (("a", "b", "c", "d", "e"), ("MeV",) * 5)
    assert (values.conditions.channels, values.conditions.units) == (("energy",), ("GeV",))
    assert values.inputs.units == ("K", "Pa") and source.labels.tolist() == [i % 3 for i in range(23)]
    inputs, images = source.layout.split(source.fetch_batch(ORDER))
    np.testing.assert_array_equal(inputs, ARRAY[ORDER, ::3, :1, :2])
    np.testing.assert_array_equal(images, ARRAY[ORDER])
    np.testing.assert_array_equal(source.constants, ARRAY[0, ..., :2])
    np.testing.assert_array_equal(source.conditions[:, 0], np.arange(23) * 10.0)
    assert source.named(3) == f"{tmp_path}/showers.h5:run/ECAL[3]"


def test_a_single_number_is_no_constant(tmp_path):
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"], file["ground"] = ARRAY, 1.5
    for data in ("0.h5", "*.h5"):
        with pytest.raises(UserError, match="--constants ground: a single number in .*0.h5; expected an array"):
            arrays(f"{tmp_path}/{data}:x", constants="ground", constant_values="none")


def many(folder, *, bounds=(0, 5, 12, 23), **beside):
    for number, (first, past) in enumerate(itertools.pairwise(bounds)):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["ECAL"], file["energy"], file["ground"] = ARRAY[first:past], np.arange(first, past), ARRAY[0, ..., 0]
            for name, arrays_of_files in beside.items():
                del file[name]
                if (array := arrays_of_files[number]) is not None:
                    file[name] = array


def test_many_files_are_one_in_the_order_of_their_paths(tmp_path, monkeypatch):
    monkeypatch.setattr("hvdgan.data.arrays.joined_files.MOST_OPEN", 2)
    many(tmp_path)
    settings = {"conditions": ("energy",), "constants": "ground", "constant_values": "none"}
    for data in (f"{tmp_path}/*.h5:ECAL", f"{tmp_path}:ECAL"):
        source = arrays(data, **settings)
        np.testing.assert_array_equal(source.fetch_batch(ORDER), ARRAY[ORDER])
        np.testing.assert_array_equal(source.fetch_batch(np.arange(23)), ARRAY)
        np.testing.assert_array_equal(source.conditions[:, 0], np.arange(23))
        np.testing.assert_array_equal(source.constants[..., 0], ARRAY[0, ..., 0])
        assert source.named(12) == f"{tmp_path}/2.h5[0]" and source.key(11) == b"1.h5[6]"


def test_a_new_file_moves_no_sample_of_another_into_the_holdout(tmp_path):
    many(tmp_path)
    before = holdout.hold_out(arrays(f"{tmp_path}:ECAL"), 0.3)[1]
    names = {before.key(place) for place in range(len(before))}
    with h5py.File(tmp_path / "00.h5", "w") as file:
        file["ECAL"] = ARRAY[:9] + 1
    after = holdout.hold_out(arrays(f"{tmp_path}:ECAL"), 0.3)[1]
    assert {name for place in range(len(after)) if not (name := after.key(place)).startswith(b"00.h5")} == names


@pytest.mark.parametrize(
    ("beside", "problem"),
    [
        ({"ECAL": [ARRAY[:5], ARRAY[:7, :5], ARRAY[:11]]}, "ECAL of {}/1.h5 has shape (7, 5, 7, 5), type float32, and"),
        ({"ECAL": [ARRAY[:5], ARRAY[:7], ARRAY[:11].astype("f8")]}, "ECAL of {}/2.h5 has shape (11, 6, 7, 5), type"),
        ({"ECAL": [ARRAY[:5], None, ARRAY[:11]]}, "no array ECAL in {}/1.h5; it has energy, ground"),
        ({"ground": [ARRAY[0, ..., 0]] * 2 + [ARRAY[1, ..., 0]]}, "--constants ground: {}/2.h5 has other numbers"),
        (
            {"energy": [np.arange(5), np.arange(7), np.arange(10)]},
            "--conditions energy: array of shape (22,); expected",
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_files_that_differ_are_named_on_every_rank(tmp_path, beside, problem, size):
    many(tmp_path, **beside)
    settings = {"conditions": ("energy",), "constants": "ground", "constant_values": "none"}

    errors = Threads(size).run(lambda peers: arrays(f"{tmp_path}/*.h5:ECAL", peers=peers, **settings))
    assert [type(error) for error in errors] == [UserError] * size
    message = str(errors[0])
    assert {str(error) for error in errors} == {message}
    assert problem.format(tmp_path) in message and "\n" not in message


@pytest.mark.parametrize("options", [LAYOUTS["contiguous"], LAYOUTS["gzip"], LAYOUTS["lzf"]])
def test_a_file_that_changes_ends_the_run_and_names_the_record(tmp_path, options):
    source = arrays(hdf5(tmp_path, ARRAY, **options))
    size = os.path.getsize(tmp_path / "a.h5")
    os.truncate(tmp_path / "a.h5", size // 2)
    with pytest.raises(RunError, match=r"a.h5:group/ECAL\[22\] cannot be read: the file has changed since"):
        source.fetch_batch(ORDER)


def test_one_of_many_files_that_is_gone_or_differs_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("hvdgan.data.arrays.joined_files.MOST_OPEN", 1)
    many(tmp_path)
    source = arrays(f"{tmp_path}/*.h5:ECAL")
    source.fetch(22)
    (tmp_path / "1.h5").unlink()
    with pytest.raises(RunError, match=r"1.h5 has changed since the run began"):
        source.fetch(6)
    with h5py.File(tmp_path / "1.h5", "w") as file:
        file["ECAL"] = ARRAY[:6]
    with pytest.raises(RunError, match=r"1.h5: shape \(6, 6, 7, 5\) .* when it had \(7, 6, 7, 5\)"):
        source.fetch(6)


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


def test_the_decoded_chunks_in_memory_are_bounded():
    cache = BoundedCache(1000)
    for number in range(100):
        cache.put(number, np.zeros(10, np.float32))
    cache.put("large", np.zeros(1001, np.uint8))
    assert cache.bytes == 1000 and cache.get(74) is None and cache.get("large") is None
    assert cache.get(75) is not None
    cache.put(100, np.zeros(10, np.float32))
    assert cache.get(75) is not None and cache.get(76) is None, "that used longest ago makes room"
