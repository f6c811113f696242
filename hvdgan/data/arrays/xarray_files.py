"""Variables of NetCDF and Zarr as the channels of samples, through xarray.

xarray knows the dimensions and decodes missing values, scale factors and offsets. The numbers of NetCDF 4, which is
HDF5, are read by hdf5_files, which several threads can use at once. Zarr arrays whose dimensions have no names are
read without xarray, and mean what an .npy file of their shape means.
"""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import h5py
import numpy as np

from hvdgan.cli.errors import RunError, UserError, in_one_line
from hvdgan.data.arrays.hdf5_files import Hdf5File
from hvdgan.data.arrays.numpy_files import NumpyArray
from hvdgan.data.arrays.stored import Container, Stored, named_errors
from hvdgan.data.base.scan_cache import identity

FILES = (".nc", ".nc4")
SUFFIXES = (*FILES, ".zarr")
_STORE_FILES = ("zarr.json", ".zgroup", ".zmetadata", ".zarray")
_DECODING: dict[str, Any] = {"decode_times": False, "decode_timedelta": False, "decode_coords": False}
_DATES = re.compile(r"\s*\w+\s+since\s")
_Reader = Callable[[np.ndarray], np.ndarray]


def open_file(data: str, axes: dict[str, str | None]) -> Container:
    """Open a NetCDF file or a Zarr store.

    Args:
        data, axes: arguments of XarrayFile.

    Raises:
        UserError: xarray is missing, or the file cannot be read.
    """
    xarray = _xarray(data)
    if os.path.isdir(data) and (_is_array(data) or _lacks_names(data)):
        return ZarrArrays(data)
    return XarrayFile(data, axes, xarray)


class XarrayFile(Container):
    """A NetCDF file or a Zarr store.

    A name is that of a variable, or of several with commas between them, which become channels. The first dimension
    counts the samples.

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
        self._axes = axes
        with _reasons(data):
            self._stamp = identity(data)
            self._hdf5 = None
            options: dict[str, Any] = {"engine": "scipy"}
            if os.path.isdir(data):
                options = {"engine": "zarr", "consolidated": False}
            elif h5py.is_hdf5(data):
                options = {"engine": "h5netcdf"}
                self._hdf5 = Hdf5File(data)
            self._dataset = xarray.open_dataset(data, cache=False, mask_and_scale=False, **_DECODING, **options)
            self._variables: dict[str, Any] = {str(name): each for name, each in self._dataset.variables.items()}

    def names(self) -> list[str]:
        return list(self._variables)

    def samples_among(self, names: Sequence[str]) -> str:
        """All variables with the most dimensions, by their names, if these are the same ones; coordinates are none."""
        kinds: dict[tuple[str, ...], list[str]] = {}
        for name in sorted(names):  # those of Zarr come in the order of a folder's listing
            if name in self._dataset.data_vars and len(self._variables[name].dims) > 1:
                kinds.setdefault(self._variables[name].dims, []).append(name)
        most = max(map(len, kinds), default=0)
        largest = [found for dims, found in kinds.items() if len(dims) == most]
        return ",".join(largest[0]) if len(largest) == 1 else ""

    def find(self, name: str, flag: str) -> Stored:
        for each in name.split(","):
            self._refuse_missing(each, flag)
        return self.get(name)

    def get(self, name: str) -> Stored:
        names = name.split(",")
        with _reasons(self.data):
            first, *others = (self._variables[each] for each in names)
            for other, its in zip(others, names[1:], strict=True):
                if (other.dims, other.shape) != (first.dims, first.shape):
                    raise UserError(
                        f"--data {self.data}: {its} has the dimensions {_dims(other)}, and {names[0]} {_dims(first)}; "
                        "variables that become channels have the same ones"
                    )
            decoders = [self._decoder(each) for each in names]
            return XarrayArray(f"{self.data}:{name}", names, decoders, self._axes.get(name, self._axes.get("")))

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
        units = [decoder.unit for decoder in decoders]
        return NumpyArray(f"{self.data}:{name}", np.stack(fields, axis=-1), units=units, channels=names)

    def stamp(self) -> list[Any]:
        return self._stamp

    def _decoder(self, name: str) -> "_Decoder":
        variable = self._variables[name]
        read = _lazily(variable)
        if self._hdf5 is not None and name in self._hdf5.names() and variable.dims:
            stored = self._hdf5.get(name)
            if stored.dtype == variable.dtype.newbyteorder("=") and stored.shape == variable.shape:
                read = stored.read
        return _Decoder(f"{self.data}:{name}", name, variable, read)


class ZarrArrays(Container):
    """A Zarr store that is one array, or that has an array whose dimensions have no names.

    Its arrays go by their paths, such as `group/ECAL`. Which axis is which follows from --axes or from their number, as
    for an .npy file.

    Args:
        data: path of the folder.

    Raises:
        UserError: it cannot be read.
    """

    def __init__(self, data: str) -> None:
        super().__init__(data)
        with _reasons(data):
            import zarr

            self._stamp = identity(data)
            self._arrays: dict[str, Any] = {}
            if _is_array(data):
                self._arrays[""] = zarr.open_array(data, mode="r")
            else:
                group = zarr.open_group(data, mode="r", use_consolidated=False)
                every = sorted(group.members(max_depth=None), key=lambda member: member[0])
                self._arrays = {path: each for path, each in every if isinstance(each, zarr.Array)}

    def names(self) -> list[str]:
        return list(self._arrays)

    def find(self, name: str, flag: str) -> Stored:
        if "," in name:
            raise UserError(
                f"{flag}: several arrays become channels only if all dimensions of {self.data} have names; name one"
            )
        return super().find(name, flag)

    def get(self, name: str) -> "ZarrArray":
        with _reasons(self.data):
            return ZarrArray(f"{self.data}:{name}" if name else self.data, name, self._arrays[name])

    def stamp(self) -> list[Any]:
        return self._stamp


class ZarrArray(Stored):
    """A Zarr array whose dimensions have no names.

    Args:
        name: name for messages.
        path: path in its store.
        array: the array.
    """

    def __init__(self, name: str, path: str, array: Any) -> None:
        def read(indices: np.ndarray) -> np.ndarray:
            some, places = np.unique(indices, return_inverse=True)
            return np.asarray(array.oindex[some])[places]

        self._decoder = _Decoder(name, path, _Nameless(array), read)
        super().__init__(name, array.shape, self._decoder.dtype, units=[self._decoder.unit], prepared=False)

    def read(self, indices: np.ndarray) -> np.ndarray:
        return self._decoder.read(indices).astype(self.dtype, copy=False)

    def whole(self) -> np.ndarray:
        return self._decoder.whole().astype(self.dtype, copy=False)


@dataclasses.dataclass(frozen=True)
class _Nameless:
    """A Zarr array with what the decoder needs of an xarray variable."""

    array: Any

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(f"axis {number}" for number in range(self.array.ndim))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def attrs(self) -> dict[str, Any]:
        return dict(self.array.attrs)

    @property
    def values(self) -> np.ndarray:
        return np.asarray(self.array[...])


class _Decoder:
    """Reads a variable, and replaces its numbers by those that they mean."""

    def __init__(self, where: str, name: str, variable: Any, read: _Reader) -> None:
        if _DATES.match(str(variable.attrs.get("units", ""))):
            raise UserError(
                f"--data {where}: holds dates ({variable.attrs['units']}); expected numbers, such as the hour of the "
                "day or the day of the year in a variable of its own"
            )
        self._where, self._name, self._variable, self._read = where, name, variable, read
        self.shape: tuple[int, ...] = variable.shape
        self.unit = str(variable.attrs.get("units", ""))
        self.dtype = self._decoded(np.zeros((1,) * len(self.shape), variable.dtype.newbyteorder("="))).dtype

    def read(self, indices: np.ndarray) -> np.ndarray:
        try:
            return self._decoded(self._read(indices))
        except RunError:
            raise
        except Exception as error:  # xarray and zarr raise many types
            raise RunError(
                f"--data {self._where}[{indices[0]}] cannot be read: {in_one_line(error)}; the file has changed, or "
                "the disk has failed; restore the file, then resume"
            ) from error

    def whole(self) -> np.ndarray:
        return self._decoded(np.asarray(self._variable.values))

    def _decoded(self, raw: np.ndarray) -> np.ndarray:
        import xarray

        variable = xarray.Variable(self._variable.dims, raw, self._variable.attrs)
        return np.asarray(xarray.conventions.decode_cf_variable(self._name, variable, decode_times=False).values)


class XarrayArray(Stored):
    """Variables with the same dimensions as the channels of samples.

    Args:
        name: name for messages.
        names: names of the variables.
        decoders: readers of the variables.
        axes: value of the flag that names the axes; with a letter for each dimension but the first, C is the dimension
            along which the variables follow one another, such as levels; else they become a new last axis.
    """

    def __init__(self, name: str, names: Sequence[str], decoders: Sequence[_Decoder], axes: str | None) -> None:
        self._decoders = decoders
        first, count = decoders[0], len(decoders)
        shape, inner = first.shape, len(first.shape) - 1
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

    def read(self, indices: np.ndarray) -> np.ndarray:
        parts = [decoder.read(indices) for decoder in self._decoders]
        if self._channel_axis is None:
            return parts[0].astype(self.dtype, copy=False)
        join = np.stack if self._channel_axis == parts[0].ndim else np.concatenate
        return join(parts, axis=self._channel_axis).astype(self.dtype, copy=False)


def is_store(path: str) -> bool:
    """Check for a folder that is a Zarr store."""
    return os.path.isdir(path) and any(os.path.exists(os.path.join(path, name)) for name in _STORE_FILES)


def _is_array(store: str) -> bool:
    """Check for a Zarr store that is a single array, not a group of them."""
    if os.path.exists(os.path.join(store, ".zarray")):
        return True
    try:
        with open(os.path.join(store, "zarr.json"), encoding="utf-8") as file:
            return json.load(file).get("node_type") == "array"
    except (OSError, ValueError, AttributeError):
        return False


def _lacks_names(store: str) -> bool:
    """Check for a group with an array whose dimensions have no names, or with none but in groups below it."""
    import zarr

    with _reasons(store):
        group = zarr.open_group(store, mode="r", use_consolidated=False)
        arrays = [array for _, array in group.arrays()]
        return not arrays or any(_is_nameless(store, array) for array in arrays)


def _is_nameless(store: str, array: Any) -> bool:
    if array.metadata.zarr_format == 2:
        if "_ARRAY_DIMENSIONS" in array.attrs:
            return False
        with open(os.path.join(store, array.path, ".zarray"), encoding="utf-8") as file:
            return "_NCZARR_ARRAY" not in json.load(file)  # where netCDF's own library keeps the names
    names = array.metadata.dimension_names
    return array.ndim > 0 and (names is None or None in names)


def _lazily(variable: Any) -> _Reader:
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
