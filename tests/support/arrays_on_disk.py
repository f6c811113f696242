"""Arrays in files of every kind, as --data names them."""

import itertools

import h5py
import numpy as np
import xarray
import zarr as zarr_library

from hvdgan.data import Samples, open_source
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig, TFRecordConfig


def npy(folder, array):
    np.save(folder / "a.npy", array)
    return f"{folder}/a.npy"


def npz(folder, array):
    np.savez(folder / "a.npz", images=array)
    return f"{folder}/a.npz"


def packed_npz(folder, array):
    np.savez_compressed(folder / "a.npz", images=array)
    return f"{folder}/a.npz"


def npy_folder(folder, array):
    (folder / "samples").mkdir()
    for number, sample in enumerate(array):
        ordered = np.asfortranarray(sample) if number % 2 and sample.ndim else sample
        np.save(folder / "samples" / f"{number:04}.npy", ordered)
    return f"{folder}/samples"


def hdf5(folder, array, **options):
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("group/ECAL", data=array, **options)
    return f"{folder}/a.h5:group/ECAL"


def gzip_hdf5(folder, array):
    """Several samples in a chunk, several chunks in a sample, and neither divides the shape."""
    chunks = (3, *(max(1, size - 1) for size in array.shape[1:]))
    return hdf5(folder, array, chunks=chunks, compression="gzip", shuffle=True)


def many_hdf5(folder, array):
    """Files of different lengths, one of them empty."""
    bounds = [0, 1, 1, len(array) // 2, len(array)]
    for number, (first, past) in enumerate(itertools.pairwise(bounds)):
        with h5py.File(folder / f"part{number}.h5", "w") as file:
            file["ECAL"] = array[first:past]
    return f"{folder}/part*.h5:ECAL"


def dataset(array):
    """Channels become variables with named dimensions."""
    dims = ("time", *("level", "y", "x")[-(array.ndim - 2) :])
    fields = {f"v{channel}": (dims, np.ascontiguousarray(array[..., channel])) for channel in range(array.shape[-1])}
    return xarray.Dataset(fields)


def netcdf(folder, array):
    dataset(array).to_netcdf(folder / "a.nc", engine="h5netcdf")
    return f"{folder}/a.nc"


def netcdf3(folder, array):
    dataset(array).to_netcdf(folder / "a.nc", engine="scipy")
    return f"{folder}/a.nc"


def zarr(folder, array):
    dataset(array).to_zarr(folder / "a.zarr", consolidated=False)
    return f"{folder}/a.zarr"


def nameless_zarr(folder, array):
    """Without names of dimensions; neither chunk divides the shape."""
    group = zarr_library.open_group(folder / "a.zarr", mode="w")
    chunks = (4, *(max(1, size - 1) for size in array.shape[1:]))
    group.create_array("group/ECAL", data=np.ascontiguousarray(array), chunks=chunks)
    return f"{folder}/a.zarr:group/ECAL"


def arrays(data, *, paired=False, peers=None, max_bad_fraction=0.01, tfrecord=None, **settings) -> Samples:
    """The source of arrays that --data names, without a map of their numbers unless another is given."""
    found = ArrayConfig(**{"values": "none", **settings})
    tfrecord = tfrecord or TFRecordConfig()
    config = Config(data=str(data), max_bad_fraction=max_bad_fraction, arrays=found, tfrecord=tfrecord)
    return open_source(config, paired=paired, **({} if peers is None else {"peers": peers}))


def seen(source):
    """The source as networks see it."""
    return source.mapped(source.values)
