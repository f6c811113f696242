"""What is no usable array: one line that names it and exit code 2, or samples left out by name; never other numbers.
Modules: data.arrays"""

import os
import pathlib

import h5py
import numpy as np
import pytest

from arrays_on_disk import arrays, hdf5, many_hdf5, netcdf, npy, npy_folder, seen
from hvdgan.cli.errors import UserError
from reading import batches_of

FLOATS = np.random.default_rng(0).random((12, 4, 4, 2), np.float32)


def truncated(folder):
    data = hdf5(folder, FLOATS)
    os.truncate(folder / "a.h5", os.path.getsize(folder / "a.h5") // 2)
    return data, "a.h5: cannot be read as HDF5: "


def of_hdf5(problem, name=":ECAL", **made):
    def write(folder):
        with h5py.File(folder / "a.h5", "w") as file:
            for its, numbers in made.items():
                file[its] = numbers
        return f"{folder}/a.h5{name}", problem

    return write


FILES = {
    "two sets": of_hdf5("found the arrays ECAL, HCAL; name the one with the samples", "", ECAL=FLOATS, HCAL=FLOATS),
    "labels of text": of_hdf5("a.h5:labels: numbers of type object; expected", ECAL=FLOATS, labels=["muon"] * 12),
    "truncated": truncated,
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_refused(tmp_path, name):
    data, problem = FILES[name](tmp_path)
    with pytest.raises(UserError) as caught:
        arrays(data)
    assert problem in str(caught.value) and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("write", [npy, npy_folder, many_hdf5, netcdf])
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
