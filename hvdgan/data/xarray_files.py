"""Variables of NetCDF and Zarr as the channels of samples, read by xarray; Zarr arrays without dimensions by zarr."""

import functools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import h5py
import numpy as np

from hvdgan.data.hdf5_files import despite_locks
from hvdgan.data.numpy_files import NumpyArray
from hvdgan.data.store import Container, Store, failed, gaps, identity, named_errors, refuse_changed, selection
from hvdgan.data.valid_numbers import ValidNumbers, of_variable, plain_numbers
from hvdgan.errors import UserError

FILES = (".nc", ".nc4")
SUFFIXES = (*FILES, ".zarr")
_OF_STORES = ("zarr.json", ".zgroup", ".zmetadata", ".zarray")
_TIMES = ("time", "times", "t", "valid_time")
"""names of dimensions that are taken for time, in lower case"""
_reasons = functools.partial(named_errors, kind="by xarray", expected="NetCDF, or a Zarr group or array")


def is_store(path: str) -> bool:
    """Check for a folder that is a Zarr store."""
    return os.path.isdir(path) and any(os.path.exists(os.path.join(path, name)) for name in _OF_STORES)


def open_file(data: str, axes: dict[str, str | None]) -> Container:
    """Open a NetCDF file or a Zarr store."""
    try:
        import h5netcdf  # noqa: F401
        import xarray
        import zarr
    except Exception as error:  # one is missing, or one of its requirements has another version
        raise UserError(
            f"--data {data}: NetCDF and Zarr are read with xarray, which cannot be imported ({error}); "
            "pip install 'hvdgan[arrays]'"
        ) from error
    with _reasons(data):
        options: dict[str, Any] = {"cache": False, "decode_times": False, "decode_timedelta": False}
        options["decode_coords"] = False
        if os.path.isdir(data):
            try:
                groups = xarray.open_groups(data, engine="zarr", consolidated=False, **options)
            except Exception:  # of many types, and raised again unless some dimensions have no names
                arrays = _arrays_in(zarr.open(data, mode="r"))
                if all(map(_has_names, arrays.values())):
                    raise
                # Those with names are left out: zarr would leave their missing numbers as they are.
                plain = {path: each for path, each in arrays.items() if not _has_names(each)}
                return Container(data, {path: functools.partial(ZarrArray, data, path, plain[path]) for path in plain})
        elif h5py.is_hdf5(data):
            options |= {"engine": "h5netcdf", "phony_dims": "access"}  # the default, which warns
            opener = functools.partial(xarray.open_groups, data, **options)
            groups = despite_locks(lambda locking: opener(driver_kwds={"locking": locking}))
        else:
            with open(data, "rb") as file:
                if file.read(4) == b"CDF\5":
                    raise ValueError("CDF-5, which xarray does not read; nccopy -k nc4 OLD.nc NEW.nc converts it")
            groups = {"": xarray.open_dataset(data, engine="scipy", **options)}
        return XarrayFile(data, axes, groups)


class XarrayFile(Container):
    """A NetCDF file or a Zarr store.

    A name is that of a variable, with the path of its group, or of several with commas between them, which become
    channels. The first dimension counts the samples.
    """

    def __init__(self, data: str, axes: dict[str, str | None], groups: dict[str, Any]) -> None:
        super().__init__(data)
        self._axes = axes
        self._stamp = None if os.path.isdir(data) else identity(data)
        self.paths = [data] if self._stamp else None
        self._variables: dict[str, Any] = {}
        self._fields: list[str] = []
        """the variables that are no coordinates"""
        for path, group in groups.items():
            paths = {name: f"{path.strip('/')}/{name}".lstrip("/") for name in group.variables}
            self._variables |= {paths[name]: variable for name, variable in group.variables.items()}
            self._fields += [paths[name] for name in group.data_vars]

    def names(self) -> list[str]:
        return list(self._variables)

    def samples_among(self, names: Sequence[str]) -> str:
        """All variables with the most dimensions, by their names, if these are the same ones.

        Those in groups count only if the root has none.
        """
        kinds: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for path in sorted(set(names) & set(self._fields)):
            dims = self._variables[path].dims
            if len(dims) > 1:
                kinds.setdefault((path.rpartition("/")[0], dims), []).append(path)
        if any(not group for group, _ in kinds):
            kinds = {kind: found for kind, found in kinds.items() if not kind[0]}
        most = max((len(dims) for _, dims in kinds), default=0)
        largest = [found for (_, dims), found in kinds.items() if len(dims) == most]
        return ",".join(largest[0]) if len(largest) == 1 else ""

    def find(self, name: str, flag: str) -> Store:
        for each in name.split(","):
            self._refuse_missing(each, flag)
        return self.get(name)

    def get(self, name: str) -> "XarrayArray":
        names = name.split(",")
        axes = self._axes.get(name, self._axes.get(""))
        variables = self._together(names, "--data", [self._variables[each] for each in names])
        dims = variables[0].dims
        if names[1:] and len(dims) == 2 and (axes or "").upper() != "C":
            flag = "--input-axes" if name in self._axes else "--axes"
            raise UserError(
                f"--data {self.data}:{name}: each variable has a vector in each sample ({_dims(variables[0])}), and "
                f"vectors do not become channels; give {flag} C to join them end to end, or name one variable"
            )
        stamps = [self._stamp] if self._stamp else [_metadata(self.data, each) for each in names]
        valid = [of_variable(each, of_netcdf=self._stamp is not None) for each in variables]
        array = XarrayArray(f"{self.data}:{name}", _without_groups(names), variables, valid, axes, stamps)
        times = [str(dim) for dim in dims if str(dim).lower() in _TIMES]
        if times and dims[0] not in times:
            array.unclear = (
                f"its first dimension {dims[0]} counts the samples, and {times[0]} comes later; write it with "
                f"{times[0]} first, as xarray's transpose() does"
            )
        return array

    def find_constant(self, name: str, flag: str) -> Store:
        """Variables of a sample's height and width as channels; a first dimension of length 1 is left out."""
        names = name.split(",")
        for each in names:
            self._refuse_missing(each, flag)
        found = [self._variables[each] for each in names]
        found = [each[0] if each.ndim == 3 and each.shape[0] == 1 else each for each in found]
        variables = self._together(names, flag, found)
        is_netcdf = self._stamp is not None
        fields = [of_variable(each, of_netcdf=is_netcdf).checked(np.asarray(each.values)) for each in variables]
        units, channels = [_unit(each) for each in variables], _without_groups(names)
        constants = NumpyArray(f"{self.data}:{name}", np.stack(fields, -1), units=units, channels=channels)
        constants.dims = _named(variables[0].dims)
        return constants

    def _together(self, names: Sequence[str], flag: str, variables: list[Any]) -> list[Any]:
        """Variables, which must have the same dimensions, and hold no dates."""
        for name, each in zip(names, variables, strict=True):
            if " since " in _unit(each):
                raise UserError(
                    f"{flag} {self.data}:{name}: holds dates ({_unit(each)}); expected numbers, such as the hour of "
                    "the day or the day of the year in a variable of its own"
                )
            if (each.dims, each.shape) != (variables[0].dims, variables[0].shape):
                raise UserError(
                    f"{flag} {self.data}: {name} has the dimensions {_dims(each)}, and {names[0]} "
                    f"{_dims(variables[0])}; variables that become channels have the same ones"
                )
        return variables


class XarrayArray(Store):
    """Variables with the same dimensions as the channels of samples.

    If `axes` has a letter for each dimension but the first, C is the dimension along which the variables follow one
    another, such as levels; else they become a new last axis. A single dimension after the first is C, as in an .npy
    file. The stamps are identities of files that are written anew where a variable is.
    """

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        variables: Sequence[Any],
        valid: Sequence[ValidNumbers],
        axes: str | None,
        stamps: Sequence[list[Any]],
    ) -> None:
        self._variables, self._valid, self._stamps = variables, valid, stamps
        shape, count, inner = variables[0].shape, len(variables), len(variables[0].shape) - 1
        if inner == 1:
            axes = "C"
        self._channel_axis: int | None = inner + 1
        channels, units = names, [_unit(each) for each in variables]
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
            if (place := self._channel_axis) is not None:
                shape = (*shape[:place], shape[place] * count, *shape[place + 1 :])
        dtype = np.result_type(*(each.dtype.newbyteorder("=") for each in variables))
        super().__init__(name, shape, dtype, units=units, channels=channels, axes=declared, prepared=False)
        self.dims = _named(variables[0].dims)

    def read(self, indices: np.ndarray) -> np.ndarray:
        for stamp in self._stamps:
            refuse_changed(stamp, self.name)
        each = zip(self._variables, self._valid, strict=True)
        parts = [_read(self, indices, variable, valid) for variable, valid in each]
        if self._channel_axis is None:
            return parts[0].astype(self.dtype, copy=False)
        join = np.stack if self._channel_axis == parts[0].ndim else np.concatenate
        return join(parts, axis=self._channel_axis).astype(self.dtype, copy=False)

    def remark(self) -> str:
        each = zip(self._stamps, self._variables, strict=False)
        return _unwritten(self.name, [stamp for stamp, variable in each if "_FillValue" not in variable.encoding])


class ZarrArray(Store):
    """An array of a Zarr store of which some have no names of dimensions, as zarr.save writes them; read by zarr.

    Which axis is which follows from --axes or from their number, as for an .npy file.
    """

    def __init__(self, data: str, path: str, array: Any) -> None:
        name, attributes = f"{data}:{path}".rstrip(":"), dict(array.attrs)
        self._array, self._stamp = array, _metadata(data, path)
        self._valid = plain_numbers(name, attributes, array.dtype)
        units = [str(attributes.get("units", ""))]
        super().__init__(name, array.shape, array.dtype.newbyteorder("="), units=units, prepared=False)

    def read(self, indices: np.ndarray) -> np.ndarray:
        refuse_changed(self._stamp, self.name)
        found = _read(self, indices, self._array.oindex, self._valid)
        return found.astype(self.dtype, copy=False)

    def remark(self) -> str:
        return _unwritten(self.name, [] if self._valid.declares else [self._stamp])


def _unwritten(name: str, stamps: Sequence[list[Any]]) -> str:
    """What Zarr arrays lack, by the paths of their metadata; NetCDF files say what their fill value is."""
    import zarr

    arrays = [zarr.open(os.path.dirname(path), mode="r") for path, *_ in stamps if path.endswith(_OF_STORES)]
    return next(filter(None, (gaps(name, a.nchunks_initialized, a.nchunks, a.fill_value) for a in arrays)), "")


def _read(store: Store, indices: np.ndarray, numbers: Any, valid: ValidNumbers) -> np.ndarray:
    """Some samples of a variable or array, each of which is read once."""
    some, places = np.unique(indices, return_inverse=True)
    try:
        found = np.asarray(numbers[selection(some)])
    except Exception as error:  # xarray and zarr raise many types
        raise failed(store.named(int(indices[0])), error) from error
    return valid.checked(found, lambda place: store.named(int(some[place])))[places]


def _metadata(folder: str, path: str) -> list[Any]:
    """Identity of the metadata of a Zarr array, which are written anew where the array is."""
    of_array = os.path.join(folder, path, "zarr.json")
    return identity(of_array if os.path.exists(of_array) else os.path.join(folder, path, ".zarray"))


def _arrays_in(item: Any) -> dict[str, Any]:
    """The arrays of a Zarr group and of all groups in it by their paths, sorted; "" for an array itself."""
    if not hasattr(item, "members"):
        return {"": item}
    return {path: each for path, each in sorted(item.members(max_depth=None)) if not hasattr(each, "members")}


def _has_names(array: Any) -> bool:
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return array.ndim == 0 or (names is not None and None not in names)


def _without_groups(paths: Sequence[str]) -> Sequence[str]:
    """The names of variables in their groups, for channels; the paths if two names are equal."""
    names = [path.rpartition("/")[2] for path in paths]
    return names if len(set(names)) == len(names) else paths


def _named(dims: Iterable[Any]) -> tuple[str, ...]:
    """Names of dimensions, "" for one that the file does not name: h5netcdf numbers these in each file anew."""
    return tuple("" if str(dim).startswith("phony_dim_") else str(dim) for dim in dims)


def _unit(variable: Any) -> str:
    return str(variable.attrs.get("units", ""))


def _dims(variable: Any) -> str:
    return ", ".join(f"{name} {size}" for name, size in zip(variable.dims, variable.shape, strict=True)) or "(none)"
