"""Every number of an array arrives as it is, of each type and from every kind of file.
Modules: data.axes, data.arrays"""

import numpy as np
import pytest

from arrays_on_disk import (
    arrays,
    gzip_hdf5,
    hdf5,
    many_hdf5,
    nameless_zarr,
    netcdf,
    netcdf3,
    npy,
    npy_folder,
    npz,
    packed_npz,
    seen,
    zarr,
)
from hvdgan.settings.data import TFRecordConfig
from packed import pack
from tfrecord_files import write


def packed(folder, array):
    np.save(folder / "a.npy", array)
    axes = {2: "C", 3: "HW", 4: "HWC", 5: "DHWC"}[array.ndim]
    return str(pack(folder / "a.npy", folder / "packed", "--axes", axes, "--compression", "gzip"))


def tfrecords(folder, array):
    """Raw bytes in two files."""
    for number, some in enumerate((array[:7], array[7:])):
        write(folder / f"{number}.tfrecord", [{"image": sample.tobytes()} for sample in some])
    return f"{folder}/*.tfrecord"


TYPES = ["float16", "float32", "float64", "uint8", "int8", "uint16", "int16", "uint32", "int32", ">f4", "F"]
KINDS = [(write, TYPES) for write in (npy, npz, packed_npz, npy_folder, hdf5, gzip_hdf5, many_hdf5)]
KINDS += [
    (netcdf, TYPES[1:-1]),
    (netcdf3, ["float32", "float64", "int8", "int16", "int32"]),
    (zarr, TYPES[:-1]),
    (nameless_zarr, TYPES[:-1]),
    (packed, TYPES[:-1]),
    (tfrecords, TYPES[:-2]),
]
"""functions that write an array, and the types that their files have"""
SHAPES = [(9, 4), (9, 3, 4), (9, 3, 5, 2), (9, 2, 3, 4, 2)]
ORDER = np.array([8, 0, 3, 3, 7])


def numbers(name, shape):
    """An array over the whole range of a type, whose numbers need all of its bits."""
    if name == "F":
        return np.asfortranarray(numbers("float32", shape))
    dtype, generator = np.dtype(name), np.random.default_rng(0)
    if dtype.kind == "f":
        return (generator.standard_normal(shape) * 1000).astype(dtype)
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, shape, dtype.newbyteorder("="), endpoint=True)


@pytest.mark.parametrize(("write", "names"), KINDS, ids=[write.__name__ for write, _ in KINDS])
def test_vectors_fields_and_volumes_of_each_type(tmp_path, write, names):
    """The shapes take turns; variables of NetCDF and Zarr have dimensions, and become channels."""
    for place, name in enumerate(names):
        shape = SHAPES[place % 4] if write not in (netcdf, netcdf3, zarr) else SHAPES[2 + place % 2]
        array, below = numbers(name, shape), tmp_path / name.replace(">", "big ")
        below.mkdir()
        axes = None if write is packed else {2: "C", 3: "HW", 4: None, 5: "DHWC"}[len(shape)]
        tfrecord = TFRecordConfig(shape=",".join(map(str, shape[1:])), dtype=name) if write is tfrecords else None
        source = seen(arrays(write(below, array), axes=axes, tfrecord=tfrecord))
        expected = (array if len(shape) != 3 else array[..., None]).astype(np.float32)
        assert source.fetch(4)["images"].dtype == np.float32 and len(source) == 9, name
        assert source.fetch_batch(ORDER)["images"].tobytes() == np.ascontiguousarray(expected[ORDER]).tobytes(), name
        assert source.fetch(4)["images"].tobytes() == np.ascontiguousarray(expected[4]).tobytes(), name
