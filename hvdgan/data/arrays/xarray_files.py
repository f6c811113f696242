"""Variables of NetCDF and Zarr as the channels of samples, through xarray.

xarray knows the dimensions and decodes missing values, scale factors and offsets. The numbers of NetCDF 4, which is
HDF5, are read by hdf5_files, which several threads can use at once. Zarr arrays whose dimensions have no names are
read without xarray, and mean what an .npy file of their shape means.
"""

import contextlib
import functools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import h5py
import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.data.arrays.hdf5_files import Hdf5File
from hvdgan.data.arrays.numpy_files import NumpyArray
from hvdgan.data.arrays.stored import Container, Stored, named_errors
from hvdgan.data.base import zarr_stores
from hvdgan.data.base.cf_numbers import Decoder, Nameless, Reader, Rules, is_date
from hvdgan.data.base.scan_cache import identity

FILES = (".nc", ".nc4")
SUFFIXES = (*FILES, ".zarr")
_DECODING: dict[str, Any] = {"decode_times": False, "decode_timedelta": False, "decode_coords": False}
_TIMES = ("time", "times", "t", "valid_time")
"""names of dimensions that are taken for time, in lower case"""


def open_file(data: str, axes: dict[str, str | None]) -> Container:
    """Open a NetCDF file or a Zarr store.

    Args:
        data, axes: arguments of XarrayFile.

    Raises:
        UserError: xarray is missing, or the file cannot be read.
    """
    xarray = _xarray(data)
    with _reasons(data):
        unnamed = zarr_stores.unnamed_array(data) if os.path.isdir(data) else None
    return XarrayFile(data, axes, xarray) if unnamed is None else ZarrArrays(data, unnamed)


class XarrayFile(Container):
    """A NetCDF file or a Zarr store.

    A name is that of a variable, with the path of its group, or of several with commas between them, which become
    channels. The first dimension counts the samples.

    Args:
        data: path of the file or folder.
        axes: value of the flag that names the axes of a sample, by the name of its variables; under "" that of all
            others.
        xarray: the package.

    Raises:
        UserError: the file cannot be read.
    """

    def __init__(self, data: str, axes: dict[str, str | None], xarray: Any) -> None:
        super().__init__(data)
        self._axes, self._xarray = axes, xarray
        self._opened: dict[str, Any] = {}
        with _reasons(data):
            self._stamp = [] if os.path.isdir(data) else identity(data)  # the files of a store are many: on demand
            self._hdf5 = None
            self._options: dict[str, Any] = {"engine": "scipy"}
            if os.path.isdir(data):
                self._options = {"engine": "zarr", "consolidated": False}
            elif h5py.is_hdf5(data):
                self._options = {"engine": "h5netcdf", "phony_dims": "access"}  # the default, which warns
                self._hdf5 = Hdf5File(data)
        self._group("")

    def names(self) -> list[str]:
        return self._names

    def samples_among(self, names: Sequence[str]) -> str:
        """All variables with the most dimensions, by their names, if these are the same ones; coordinates are none.

        Those in groups count only if the root has none.
        """
        kinds: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for path in sorted(names):  # those of Zarr come in the order of a folder's listing
            group, name = _parted(path)
            dims = self._variable(path).dims
            if name in self._group(group).data_vars and len(dims) > 1:
                kinds.setdefault((group, dims), []).append(path)
        if any(not group for group, _ in kinds):
            kinds = {kind: found for kind, found in kinds.items() if not kind[0]}
        most = max((len(dims) for _, dims in kinds), default=0)
        largest = [found for (_, dims), found in kinds.items() if len(dims) == most]
        return ",".join(largest[0]) if len(largest) == 1 else ""

    def find(self, name: str, flag: str) -> Stored:
        for each in name.split(","):
            self._refuse_missing(each, flag)
        return self.get(name)

    def get(self, name: str) -> Stored:
        names = name.split(",")
        axes = self._axes.get(name, self._axes.get(""))
        with _reasons(self.data):
            first, *others = map(self._variable, names)
            for other, its in zip(others, names[1:], strict=True):
                if (other.dims, other.shape) != (first.dims, first.shape):
                    raise UserError(
                        f"--data {self.data}: {its} has the dimensions {_dims(other)}, and {names[0]} {_dims(first)}; "
                        "variables that become channels have the same ones"
                    )
            if others and len(first.dims) == 2 and (axes or "").upper() != "C":
                flag = "--input-axes" if name in self._axes else "--axes"
                raise UserError(
                    f"--data {self.data}:{name}: each variable has a vector in each sample ({_dims(first)}), and "
                    f"vectors do not become channels; give {flag} C to join them end to end, or name one variable"
                )
            decoders = [self._decoder(each) for each in names]
            array = XarrayArray(f"{self.data}:{name}", _without_groups(names), decoders, axes)
            array.dims = _named(first.dims)
            if time := self._late_time(names[0]):
                array.unclear = (
                    f"its first dimension {first.dims[0]} counts the samples, and {time} comes later; write it with "
                    f"{time} first, as xarray's transpose() does"
                )
            return array

    def find_constant(self, name: str, flag: str) -> Stored:
        """Variables of a sample's height and width as channels; a first dimension of length 1 is left out."""
        names = name.split(",")
        for each in names:
            self._refuse_missing(each, flag)
        with _reasons(self.data):
            decoders = [self._decoder(each) for each in names]
            fields = [decoder.whole() for decoder in decoders]
            fields = [each[0] if each.ndim == 3 and len(each) == 1 else each for each in fields]
            if len({each.shape for each in fields}) > 1:
                raise UserError(f"{flag} {name}: shapes {', '.join(str(each.shape) for each in fields)}; expected one")
            dims = [_named(self._variable(each).dims)[-field.ndim :] for each, field in zip(names, fields, strict=True)]
            if len(set(dims)) > 1:
                found = "; ".join(", ".join(each) for each in dims)
                raise UserError(f"{flag} {name}: the dimensions are {found}; expected the same for all, in one order")
            for decoder, field in zip(decoders, fields, strict=True):
                if broken := decoder.rules().broken_by(field):
                    raise UserError(f"{flag} {name}: {self.data}: {broken[1]}")
        units, channels = [decoder.unit for decoder in decoders], _without_groups(names)
        constants = NumpyArray(f"{self.data}:{name}", np.stack(fields, axis=-1), units=units, channels=channels)
        constants.dims = dims[0]
        return constants

    def stamp(self) -> list[Any]:
        if self._hdf5 is not None:
            return self._hdf5.stamp()
        self._stamp = self._stamp or zarr_stores.stamp_of(self.data)
        return self._stamp

    def sources(self) -> list[str]:
        return [] if self._hdf5 is None else self._hdf5.sources()

    def _refuse_missing(self, name: str, flag: str) -> None:
        group, its = _parted(name)
        if (group and group not in self._groups) or its not in self._group(group).variables:
            super()._refuse_missing(name, flag)

    @functools.cached_property
    def _names(self) -> list[str]:
        names = [str(name) for name in self._group("").variables]
        for group in self._groups:
            with contextlib.suppress(UserError):  # raised where a variable of this group is asked for
                names += [f"{group}/{name}" for name in self._group(group).variables]
        return names

    @functools.cached_property
    def _groups(self) -> list[str]:
        """Paths of the groups below the root that have variables."""
        paths: Iterable[str] = ()
        with _reasons(self.data):
            if self._hdf5 is not None:
                paths = self._hdf5.names()
            elif os.path.isdir(self.data):
                paths = zarr_stores.arrays_of(self.data)
        return sorted({_parted(path)[0] for path in paths} - {""})

    def _group(self, path: str) -> Any:
        """The xarray.Dataset of a group; "" is the root."""
        if path not in self._opened:
            with _reasons(f"{self.data}:{path}" if path else self.data):
                self._opened[path] = self._xarray.open_dataset(
                    self.data, group=path or None, cache=False, mask_and_scale=False, **_DECODING, **self._options
                )
        return self._opened[path]

    def _variable(self, path: str) -> Any:
        group, name = _parted(path)
        return self._group(group).variables[name]

    def _decoder(self, name: str) -> Decoder:
        variable = self._variable(name)
        read = _lazily(variable)
        if self._hdf5 is not None and name in self._hdf5.names() and variable.dims:
            stored = self._hdf5.undecoded(name)
            if stored.dtype == variable.dtype.newbyteorder("=") and stored.shape == variable.shape:
                read = stored.read
        return Decoder(f"{self.data}:{name}", name, variable, read, of_netcdf=not os.path.isdir(self.data))

    def _late_time(self, path: str) -> str:
        """The dimension of time, if it is not the first one, which counts the samples; else ""."""
        group, dims = self._group(_parted(path)[0]), self._variable(path).dims
        times = [dim for dim in dims if _is_time(group, dim)]
        return times[0] if times and dims[0] not in times else ""


class ZarrArrays(Container):
    """A Zarr store that is one array, or that has an array whose dimensions have no names.

    Its arrays go by their paths, such as `group/ECAL`. Which axis is which follows from --axes or from their number, as
    for an .npy file.

    Args:
        data: path of the folder.
        unnamed: path of the array without names; "" if the store is one array.

    Raises:
        UserError: it cannot be read.
    """

    def __init__(self, data: str, unnamed: str) -> None:
        super().__init__(data)
        self._unnamed = unnamed
        self._stamp: list[Any] = []
        with _reasons(data):
            self._arrays = zarr_stores.arrays_of(data)

    def names(self) -> list[str]:
        return list(self._arrays)

    def find(self, name: str, flag: str) -> Stored:
        if "," in name and self._unnamed:
            raise UserError(
                f"{flag}: several arrays become channels only if all dimensions in {self.data} have names, and those "
                f"of {self._unnamed} have none; name one array, or give that one names"
            )
        return super().find(name, flag)

    def get(self, name: str) -> "ZarrArray":
        with _reasons(self.data):
            array = self._arrays[name]
            attributes = zarr_stores.attributes_of(self.data, array)
            return ZarrArray(f"{self.data}:{name}" if name else self.data, name, array, attributes)

    def stamp(self) -> list[Any]:
        self._stamp = self._stamp or zarr_stores.stamp_of(self.data)
        return self._stamp


class ZarrArray(Stored):
    """A Zarr array that is read without xarray.

    Args:
        name: name for messages.
        path: path in its store.
        array: the array.
        attributes: its attributes as xarray gives them.
    """

    def __init__(self, name: str, path: str, array: Any, attributes: dict[str, Any]) -> None:
        def read(indices: np.ndarray) -> np.ndarray:
            some, places = np.unique(indices, return_inverse=True)
            return np.asarray(array.oindex[some])[places]

        self._decoder = Decoder(name, path or "the array", Nameless(array, attributes), read)
        super().__init__(name, array.shape, self._decoder.dtype, units=[self._decoder.unit], prepared=False)

    def read(self, indices: np.ndarray) -> np.ndarray:
        return self._decoder.read(indices).astype(self.dtype, copy=False)

    def whole(self) -> np.ndarray:
        return self._decoder.whole().astype(self.dtype, copy=False)

    def rules(self) -> Sequence[Rules]:
        return [self._decoder.rules()]


class XarrayArray(Stored):
    """Variables with the same dimensions as the channels of samples.

    Args:
        name: name for messages.
        names: names of the variables.
        decoders: readers of the variables.
        axes: value of the flag that names the axes; with a letter for each dimension but the first, C is the dimension
            along which the variables follow one another, such as levels; else they become a new last axis. A single
            dimension after the first is C, as in an .npy file.
    """

    def __init__(self, name: str, names: Sequence[str], decoders: Sequence[Decoder], axes: str | None) -> None:
        self._decoders = decoders
        first, count = decoders[0], len(decoders)
        shape, inner = first.shape, len(first.shape) - 1
        if inner == 1:
            axes = "C"
        self._channel_axis: int | None = inner + 1
        channels: Sequence[str] = names
        units = [decoder.unit for decoder in decoders]
        if inner < 1 and count == 1:
            self._channel_axis = None
        elif axes is not None and len(axes) == inner and ("C" in axes.upper() or count == 1):
            self._channel_axis = 1 + axes.upper().index("C") if "C" in axes.upper() else None
            levels = shape[self._channel_axis] if self._channel_axis else 1
            channels = [f"{each}_{level}" for each in names for level in range(levels)] if levels > 1 else names
            units = [unit for unit in units for _ in range(levels)]
        if self._channel_axis == inner + 1:
            shape, declared = (*shape, count), {0: "C", 2: "HWC", 3: "DHWC"}.get(inner, "")
        else:
            declared = {1: "C", 2: "HW", 3: "DHW"}.get(inner, "")
            if self._channel_axis is not None:
                place = self._channel_axis
                shape = (*shape[:place], shape[place] * count, *shape[place + 1 :])
        dtype = np.result_type(*(decoder.dtype for decoder in decoders))
        super().__init__(name, shape, dtype, units=units, channels=channels, axes=declared, prepared=False)
        self.rules_axis = self._channel_axis or 0

    def read(self, indices: np.ndarray) -> np.ndarray:
        parts = [decoder.read(indices) for decoder in self._decoders]
        if self._channel_axis is None:
            return parts[0].astype(self.dtype, copy=False)
        join = np.stack if self._channel_axis == parts[0].ndim else np.concatenate
        return join(parts, axis=self._channel_axis).astype(self.dtype, copy=False)

    def rules(self) -> Sequence[Rules]:
        return [decoder.rules() for decoder in self._decoders]


def _parted(path: str) -> tuple[str, str]:
    """The group of a variable, "" for the root, and its name there."""
    group, _, name = path.rpartition("/")
    return group, name


def _without_groups(paths: Sequence[str]) -> Sequence[str]:
    """The names of variables in their groups, for channels; the paths if two names are equal."""
    names = [_parted(path)[1] for path in paths]
    return names if len(set(names)) == len(names) else paths


def _named(dims: Iterable[Any]) -> tuple[str, ...]:
    """Names of dimensions, "" for one that the file does not name: h5netcdf numbers these in each file anew."""
    return tuple("" if str(dim).startswith("phony_dim_") else str(dim) for dim in dims)


def _is_time(group: Any, dim: str) -> bool:
    """Check for a dimension of time: by its name, by its coordinate, or because records are added along it."""
    attributes = group.variables[dim].attrs if dim in group.variables else {}
    return (
        str(dim).lower() in _TIMES
        or attributes.get("axis") == "T"
        or attributes.get("standard_name") == "time"
        or is_date(attributes.get("units", ""))
        or dim in group.encoding.get("unlimited_dims", ())
    )


def _lazily(variable: Any) -> Reader:
    def read(indices: np.ndarray) -> np.ndarray:
        some, places = np.unique(indices, return_inverse=True)
        return np.asarray(variable.isel({variable.dims[0]: some}).values)[places]

    return read


def _dims(variable: Any) -> str:
    return ", ".join(f"{name} {size}" for name, size in zip(variable.dims, variable.shape, strict=True)) or "(none)"


def _xarray(data: str) -> Any:
    try:
        import h5netcdf  # noqa: F401
        import xarray
        import zarr  # noqa: F401
    except Exception as error:  # one is missing, or one of its requirements has another version
        raise UserError(
            f"--data {data}: NetCDF and Zarr are read with xarray, which cannot be imported ({error}); "
            "pip install 'hvdgan[arrays]'"
        ) from error
    return xarray


def _reasons(name: str) -> contextlib.AbstractContextManager[None]:
    return named_errors(name, "by xarray", "NetCDF, or a Zarr group or array")
