"""hvdgan.prepare of arrays in NetCDF, in Zarr and in several HDF5 files: the numbers, names and units of the source."""

import h5py
import numpy as np
import pytest

from arrays_on_disk import dataset
from packed import manifest_of
from packed_arrays import RNG, all_of, opened, pack

NAMES, UNITS = ["v0", "v1", "v2"], ["K", "m/s", ""]
FIELDS = RNG.normal(size=(14, 6, 5, 3)).astype(np.float32)


def described():
    made = dataset(FIELDS)
    for name, unit in zip(NAMES, UNITS, strict=True):
        made[name].attrs.update({"units": unit} if unit else {})
    return made


def netcdf(folder):
    described().to_netcdf(folder / "a.nc", engine="h5netcdf")
    return f"{folder}/a.nc"


def some_of_netcdf(folder):
    """Variables in another order than that of the file."""
    return f"{netcdf(folder)}:v2,v0"


def zarr(folder):
    described().to_zarr(folder / "a.zarr", consolidated=False)
    return f"{folder}/a.zarr"


def several_hdf5(folder):
    for number, some in enumerate((FIELDS[:3], FIELDS[3:10], FIELDS[10:])):
        with h5py.File(folder / f"part{number}.h5", "w") as file:
            file["fields"] = some
            file["fields"].attrs.update({"units": UNITS, "channels": NAMES})
    return f"{folder}/part*.h5:fields"


@pytest.mark.parametrize("write", [netcdf, some_of_netcdf, zarr, several_hdf5])
def test_the_shards_hold_what_the_files_hold(tmp_path, write):
    data = write(tmp_path)
    made, places = pack(data, tmp_path / "made"), [2, 0] if write is some_of_netcdf else [0, 1, 2]
    source = opened(made)
    np.testing.assert_array_equal(all_of(source), FIELDS[..., places])
    np.testing.assert_array_equal(all_of(source), all_of(opened(data)))
    names, units = [NAMES[place] for place in places], [UNITS[place] for place in places]
    manifest, images = manifest_of(made), source.values.images
    assert (manifest["count"], manifest["shape"], manifest["dtype"]) == (14, [6, 5, len(places)], "<f4")
    assert (manifest["channel_names"], manifest["units"]) == (names, units)
    assert (list(images.channels), list(images.units)) == (names, units)
