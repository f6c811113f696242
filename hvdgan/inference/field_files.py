"""Writes samples of whole fields to NetCDF or Zarr, with the coordinates that the file of their inputs has."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.data import Samples
from hvdgan.data.xarray_files import SUFFIXES, is_store
from hvdgan.recipe import DataSpec

_SPACE = ("z", "y", "x")


def write_dataset(path: Path, made: np.ndarray, spec: DataSpec, source: Samples, data: str, members: int) -> None:
    """Write samples (N, *space, C) as variables, one for each channel that has a name.

    Their dimensions have the names of those in the file `data`; `member` counts the samples from one field.
    """
    import xarray  # only for these files

    axes, (count, *space, channels) = made.ndim - 2, made.shape
    dims = next((store.dims[:1] + store.space for store in (source.images, source.inputs) if store and store.space), ())
    first, *named = dims if len(dims) == axes + 1 and all(dims) else ("sample", *_SPACE[-axes:])
    rows = source.numbers(np.arange(count) // members)
    members = 1 if count % members else members  # the last field has fewer
    coordinates = _coordinates(data, source, (first, *named), space, rows[::members])
    shape, dims = (count, *space), (first, *named)
    if members > 1:
        shape, dims = (count // members, members, *space), (first, "member", *named)
    values = None if spec.values is None else spec.values.images
    names = () if values is None or all(map(str.isdecimal, values.channels)) else values.channels
    units = (values and values.units) or ("",) * channels
    variables: dict[str, Any] = {
        name: (dims, made[..., place].reshape(shape), {"units": units[place]} if units[place] else {})
        for place, name in enumerate(names or ("samples",) * (channels == 1))
    }
    if not variables:
        variables = {"samples": ([*dims, "channel"], made.reshape(*shape, channels))}
    dataset = xarray.Dataset(variables, coordinates)
    if path.suffix == ".nc":
        dataset.to_netcdf(path, engine="h5netcdf")
    else:
        dataset.to_zarr(path, consolidated=False)


def _coordinates(
    data: str, source: Samples, dims: Sequence[str], space: Sequence[int], rows: np.ndarray
) -> Mapping[str, Any]:
    """The coordinates of samples: as in the file, or between those of the inputs where samples are finer."""
    import xarray

    found: dict[str, Any] = {}
    path = data if Path(data).exists() else data.rpartition(":")[0]
    if not is_store(path) and not (Path(path).is_file() and path.endswith(SUFFIXES)):
        return found
    engine = {"engine": "zarr", "consolidated": False} if is_store(path) else {}
    sizes, coarse = dict(zip(dims[1:], space, strict=True)), source.inputs.space if source.inputs else ()
    finer = dict(zip(coarse, zip(dims[1:], space, strict=True), strict=False))
    with xarray.open_dataset(path, decode_times=False, **engine) as file:
        for name, each in file.coords.items():
            if dims[0] in each.dims:
                each = each.isel({dims[0]: rows})
            if all(dim == dims[0] or sizes.get(str(dim)) == each.sizes[dim] for dim in each.dims):
                found[str(name)] = (each.dims, each.values, each.attrs)
        for dim, (fine, size) in finer.items():
            if fine not in found and dim in file.coords and size > file.sizes[dim] > 1:
                found[fine] = ((fine,), _between(file[dim].values, size), file[dim].attrs)
    return found


def _between(centres: np.ndarray, size: int) -> np.ndarray:
    """The centres of finer cells of which each coarse one has the same number."""
    places = (np.arange(size) + 0.5) * len(centres) / size - 0.5
    low = np.clip(np.floor(places).astype(int), 0, len(centres) - 2)
    return centres[low] + (places - low) * (centres[low + 1] - centres[low])
