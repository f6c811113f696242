"""What is no usable array: one line that names it and exit code 2, or samples left out by name; never other numbers.

Modules: data.arrays.
"""

import os
import pathlib

import h5py
import numpy as np
import pytest

from arrays_on_disk import arrays, hdf5, many_hdf5, nameless_zarr, netcdf, npy, npy_folder, npz, seen, zarr
from hvdgan.train import main
from reading import batches_of

FLOATS = np.random.default_rng(0).random((12, 4, 4, 2), np.float32)
TINY = "--recipe tiny:Tiny --global-batch-size 4 --steps 1 --dry-run".split()


def complaint(capsys, *arguments):
    """The line that the command ends with, after exit code 2."""
    capsys.readouterr()
    assert main([*TINY, *map(str, arguments)]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hvdgan: ")]
    assert len(lines) == 1, lines
    return lines[0]


def pickled_folder(folder):
    np.save(folder / "a.npy", np.array([{}, 1], object), allow_pickle=True)
    return folder, "such as a.npy: no whole .npy file: Object arrays cannot be loaded"


def truncated(folder):
    data = hdf5(folder, FLOATS)
    os.truncate(folder / "a.h5", os.path.getsize(folder / "a.h5") // 2)
    return data, "a.h5: cannot be read as HDF5: "


def truncated_netcdf(folder):
    data = netcdf(folder, FLOATS)
    os.truncate(folder / "a.nc", os.path.getsize(folder / "a.nc") // 2)
    return data, "a.nc: cannot be read "


def no_zarr(folder):
    (folder / "a.zarr").mkdir()
    return f"{folder}/a.zarr", "a.zarr: no Zarr store: it has no zarr.json, .zgroup or .zarray"


def a_group(folder):
    return hdf5(folder, FLOATS).replace("group/ECAL", "group"), "no array group in"


def of_hdf5(problem, name=":ECAL", **made):
    def write(folder):
        with h5py.File(folder / "a.h5", "w") as file:
            for its, numbers in made.items():
                file[its] = numbers
        return f"{folder}/a.h5{name}", problem

    return write


def variable_length(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("ECAL", (3,), h5py.vlen_dtype(np.float32))
    return f"{folder}/a.h5:ECAL", "numbers of type object; expected float16"


def damaged_zarr(folder):
    data = nameless_zarr(folder, np.ones((4, 3)))
    (folder / "a.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node')
    return data, "a.zarr: cannot be read by xarray: "


def pictures_and_hdf5(folder):
    hdf5(folder, FLOATS)
    (folder / "z.png").touch()
    return folder, "holds samples in files of two kinds, such as a.h5 and z.png; move one kind elsewhere"


FILES = {
    "empty set": of_hdf5("a.h5:ECAL: it is empty; expected at least one sample", ECAL=h5py.Empty("f4")),
    "a number": of_hdf5("array of shape (); expected (N, C)", ECAL=4.0),
    "two sets": of_hdf5("found the arrays ECAL, HCAL; name the one with the samples", "", ECAL=FLOATS, HCAL=FLOATS),
    "labels of text": of_hdf5("a.h5:labels: numbers of type object; expected", ECAL=FLOATS, labels=["muon"] * 12),
}
MADE = (pickled_folder, truncated, truncated_netcdf, no_zarr, a_group, variable_length, damaged_zarr, pictures_and_hdf5)
FILES |= {make.__name__: make for make in MADE}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_refused(tmp_path, capsys, name):
    data, problem = FILES[name](tmp_path)
    line = complaint(capsys, "--data", data)
    assert problem in line and str(tmp_path) in line


@pytest.mark.parametrize("write", [npy, npz, npy_folder, hdf5, many_hdf5, netcdf, zarr])
def test_samples_with_numbers_that_are_not_finite_are_left_out_by_name(tmp_path, write):
    array = FLOATS.copy()
    array[5, 2, 3, 1] = np.inf if write is npy else np.nan
    data = write(tmp_path, array)
    source = seen(arrays(data))
    with batches_of(source, global_batch_size=4, max_bad_fraction=0.1) as batches:
        read = [next(batches) for _ in range(3)]
        assert 5 not in np.concatenate([each["index"] for each in read])
        for each in read:
            np.testing.assert_array_equal(each["images"].numpy(), array[each["index"].numpy()])
        (bad,) = batches.bad_files
    assert "1 of 32 numbers are" in bad.reason or "1 of 16 numbers are" in bad.reason
    assert "5" in pathlib.Path(bad.name).name
