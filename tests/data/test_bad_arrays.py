"""What is no usable array: one line that names it and exit code 2, or samples left out by name; never other numbers.

Modules: data.arrays.
"""

import os
import pathlib

import h5py
import numpy as np
import pytest
import xarray

from arrays_on_disk import (
    arrays,
    gzip_hdf5,
    hdf5,
    many_hdf5,
    nameless_zarr,
    netcdf,
    npy,
    npy_folder,
    npz,
    packed_npz,
    seen,
    zarr,
)
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


NUMPY, HDF5 = (npy, npz, packed_npz), (hdf5, gzip_hdf5, many_hdf5)
KINDS = {
    "complex": (FLOATS * 1j, "numbers of type complex64; expected float16", (*NUMPY, npy_folder, *HDF5)),
    "bool": (FLOATS > 0.5, "numbers of type bool; expected float16", (*NUMPY, npy_folder, *HDF5)),
    "date": ((FLOATS * 9).astype("M8[s]"), "numbers of type datetime64[s]; expected", (*NUMPY, npy_folder)),
    "text": (FLOATS.astype("S5"), "numbers of type |S5; expected float16", (*NUMPY, npy_folder, hdf5, many_hdf5)),
    "structure": (
        FLOATS.view([("real", "f4"), ("imaginary", "f4")]),
        "('imaginary', '<f4')]; expected float16",
        (*NUMPY, hdf5, many_hdf5),
    ),
    "no sample": (FLOATS[:0], "array of shape (0, 4, 4, 2): it holds no numbers", (*NUMPY, hdf5)),
    "no pixel": (FLOATS[:, :0], "4, 2): it holds no numbers", (*NUMPY, npy_folder, hdf5)),
    "one axis": (FLOATS[:, 0, 0, 0], "array of shape (12,); expected (N, C), (N, H, W)", (*NUMPY, npy_folder, hdf5)),
    "six axes": (
        FLOATS[..., None, None],
        "array of shape (12, 4, 4, 2, 1, 1); expected (N, C)",
        (npy, npy_folder, hdf5),
    ),
    "four channels": (np.repeat(FLOATS, 2, -1), "opacity, or four fields? give", (*NUMPY, npy_folder, *HDF5)),
    "integers": (
        (FLOATS * 9).astype("i4"),
        "integers of type int32 without a map",
        (*NUMPY, npy_folder, *HDF5, netcdf),
    ),
    "wide": (FLOATS * 9, "declare their map, such as --values standard", (*NUMPY, npy_folder, *HDF5, netcdf, zarr)),
    "no finite": (FLOATS * np.nan, "has a finite number", (*NUMPY, npy_folder, *HDF5, netcdf, zarr)),
}
ROWS = [(name, write) for name, (_, _, writers) in KINDS.items() for write in writers]


@pytest.mark.parametrize(("name", "write"), ROWS, ids=[f"{write.__name__} {name}" for name, write in ROWS])
def test_arrays_that_are_refused(tmp_path, capsys, name, write):
    array, problem, _ = KINDS[name]
    data = write(tmp_path, array)
    line = complaint(capsys, "--data", data)
    assert problem in line and str(tmp_path) in line


def pickled(folder):
    np.save(folder / "a.npy", np.array([{}, 1], object), allow_pickle=True)
    return f"{folder}/a.npy", "Python objects"


def pickled_npz(folder):
    np.savez(folder / "a.npz", x=np.array([{}, 1], object), allow_pickle=True)
    return f"{folder}/a.npz:x", "Object arrays cannot be loaded when allow_pickle=False"


def pickled_folder(folder):
    np.save(folder / "a.npy", np.array([{}, 1], object), allow_pickle=True)
    return folder, "such as a.npy: no whole .npy file: it holds Python objects (pickle), which are not read"


def truncated(folder):
    data = hdf5(folder, FLOATS)
    os.truncate(folder / "a.h5", os.path.getsize(folder / "a.h5") // 2)
    return data, "a.h5: cannot be read as HDF5: "


def truncated_netcdf(folder):
    data = netcdf(folder, FLOATS)
    os.truncate(folder / "a.nc", os.path.getsize(folder / "a.nc") // 2)
    return data, "a.nc: cannot be read "


def damaged_head(folder):
    (folder / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\xff" * 2000)
    return f"{folder}/a.h5", "a.h5: cannot be read as HDF5: "


def no_hdf5(folder):
    (folder / "a.h5").write_text("text")
    return f"{folder}/a.h5:ECAL", "a.h5: cannot be read as HDF5: "


def no_netcdf(folder):
    (folder / "a.nc").write_text("text")
    return f"{folder}/a.nc", "a.nc: cannot be read by xarray: "


def no_zarr(folder):
    (folder / "a.zarr").mkdir()
    return f"{folder}/a.zarr", "a.zarr: no Zarr store: it has no zarr.json, .zgroup or .zarray"


def missing_set(folder):
    return hdf5(folder, FLOATS).replace("ECAL", "HCAL"), "no array group/HCAL in"


def missing_variable(folder):
    return f"{netcdf(folder, FLOATS)}:t2m", "no array t2m in"


def missing_file(folder):
    return f"{folder}/nothing.h5:ECAL", "no such file or folder; expected digits"


def missing_pattern(folder):
    return f"{folder}/*.h5:ECAL", "no such file or folder; expected digits"


def a_group(folder):
    return hdf5(folder, FLOATS).replace("group/ECAL", "group"), "no array group in"


def variable_length(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("ECAL", (3,), h5py.vlen_dtype(np.float32))
    return f"{folder}/a.h5:ECAL", "numbers of type object; expected float16"


def empty_set(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file["ECAL"] = h5py.Empty("f4")
    return f"{folder}/a.h5:ECAL", "a.h5:ECAL: it is empty; expected at least one sample"


def a_number(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file["ECAL"] = 4.0
    return f"{folder}/a.h5:ECAL", "array of shape (); expected (N, C)"


def two_sets(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file["ECAL"] = file["HCAL"] = FLOATS
    return f"{folder}/a.h5", "found the arrays ECAL, HCAL; name the one with the samples, as in --data"


def labels_of_text(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file["ECAL"], file["labels"] = FLOATS, ["muon"] * 12
    return f"{folder}/a.h5:ECAL", "labels of shape (12,) and type object; expected one integer for each"


def dates(folder):
    times = xarray.DataArray(np.zeros((4, 3, 3)), dims=("t", "y", "x"), attrs={"units": "days since 2000-01-01"})
    xarray.Dataset({"when": times}).to_netcdf(folder / "a.nc", engine="h5netcdf")
    return f"{folder}/a.nc:when", "holds dates (days since 2000-01-01); expected numbers"


def damaged_zarr(folder):
    data = nameless_zarr(folder, np.ones((4, 3)))
    (folder / "a.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node')
    return data, "a.zarr: cannot be read by xarray: "


def complex_zarr(folder):
    return nameless_zarr(folder, np.ones((4, 3), np.complex64)), "a.zarr:group/ECAL: numbers of type complex64"


def missing_zarr_array(folder):
    return nameless_zarr(folder, np.ones((4, 3)))[:-4] + "energy", "no array group/energy in "


def pictures_and_hdf5(folder, picture="z.png"):
    hdf5(folder, FLOATS)
    (folder / picture).touch()
    return folder, f"holds images and arrays, such as {picture} and a.h5; move one kind elsewhere"


def hdf5_after_pictures(folder):
    return pictures_and_hdf5(folder, "0.PNG")


def hdf5_and_netcdf(folder):
    hdf5(folder, FLOATS)
    (folder / "below").mkdir()
    (folder / "below" / "b.NC").touch()
    return folder, "holds arrays in files of two kinds, such as a.h5 and below/b.NC; move one kind elsewhere"


def npy_and_hdf5(folder):
    np.save(folder / "0.npy", FLOATS[0])
    hdf5(folder, FLOATS)
    return folder, "holds arrays in files of two kinds, such as 0.npy and a.h5; move one kind elsewhere"


FILES = [pickled, pickled_npz, pickled_folder, truncated, truncated_netcdf, damaged_head]
FILES += [no_hdf5, no_netcdf, no_zarr, missing_set, missing_variable, missing_file, missing_pattern, a_group]
FILES += [variable_length, empty_set, a_number, two_sets, labels_of_text, dates, damaged_zarr]
FILES += [complex_zarr, missing_zarr_array]
FILES += [pictures_and_hdf5, hdf5_after_pictures, hdf5_and_netcdf, npy_and_hdf5]


@pytest.mark.parametrize("make", FILES)
def test_files_that_are_refused(tmp_path, capsys, make):
    data, problem = make(tmp_path)
    line = complaint(capsys, "--data", data)
    assert problem in line and str(tmp_path) in line


def beside(kind, folder, **more):
    """Samples, and other arrays in the same file."""
    if kind == "npz":
        np.savez(folder / "a.npz", images=FLOATS, **more)
        return f"{folder}/a.npz"
    if kind == "hdf5":
        with h5py.File(folder / "a.h5", "w") as file:
            for name, array in {"images": FLOATS, **more}.items():
                file[name] = array
        return f"{folder}/a.h5"
    dims = {name: ("t", *(f"{name}{axis}" for axis in range(array.ndim - 1))) for name, array in more.items()}
    fields = {
        name: ((f"{name}_t" if len(array) != 12 else "t", *dims[name][1:]), array) for name, array in more.items()
    }
    samples = {f"v{channel}": (("t", "y", "x"), FLOATS[..., channel]) for channel in range(2)}
    xarray.Dataset({**samples, **fields}).to_netcdf(folder / "a.nc", engine="h5netcdf")
    return f"{folder}/a.nc:v0,v1"


CONDITIONS = {
    "missing": ({}, "--conditions: no array energy in"),
    "short": ({"energy": np.ones(11)}, "--conditions energy: array of shape (11,); expected one entry for each of 12"),
    "not finite": ({"energy": np.full(12, np.inf)}, "energy of sample 0 is inf; expected a finite number"),
    "text": ({"energy": np.full(12, b"high")}, "expected float16, float32"),
}


@pytest.mark.parametrize("kind", ["npz", "hdf5", "netcdf"])
@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_that_are_refused(tmp_path, capsys, kind, name):
    arrays_beside, problem = CONDITIONS[name]
    line = complaint(capsys, "--data", beside(kind, tmp_path, **arrays_beside), "--conditions", "energy")
    assert problem in line


@pytest.mark.parametrize("write", [npy, npz, npy_folder, *HDF5, netcdf, zarr])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_with_numbers_that_are_not_finite_are_left_out_by_name(tmp_path, write, value):
    array = FLOATS.copy()
    array[5, 2, 3, 1] = value
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
