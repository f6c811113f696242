"""What a Zarr store holds: its arrays in all groups, which of them name their dimensions, and their attributes.

Reference: Xarray, "Zarr Encoding Specification": names of dimensions, and the values that mark missing numbers.
"""

import base64
import json
import os
import struct
from collections.abc import Iterator
from typing import Any, NoReturn

from hvdgan.data.base.scan_cache import identity_of_many

_FILES = ("zarr.json", ".zgroup", ".zmetadata", ".zarray")
_NAMES = "_ARRAY_DIMENSIONS"
_FILL_VALUE = "_FillValue"


def is_store(path: str) -> bool:
    """Check for a folder that is a Zarr store."""
    return os.path.isdir(path) and any(os.path.exists(os.path.join(path, name)) for name in _FILES)


def arrays_of(store: str) -> dict[str, Any]:
    """The arrays of a store and of all groups in it by their paths, sorted; "" for a store that is one array."""
    import zarr

    if _is_array(store):
        return {"": zarr.open_array(store, mode="r")}
    group = zarr.open_group(store, mode="r", use_consolidated=False)
    every = sorted(group.members(max_depth=None), key=lambda member: member[0])
    return {path: each for path, each in every if isinstance(each, zarr.Array)}


def unnamed_array(store: str) -> str | None:
    """The path of an array that keeps xarray from reading a store; None if there is none.

    That is "" for a store that is one array, else an array at the root whose dimensions have no names. If the root has
    no arrays, those of its groups count.
    """
    import zarr

    if _is_array(store):
        return ""
    arrays = dict(zarr.open_group(store, mode="r", use_consolidated=False).arrays()) or arrays_of(store)
    return next((path for path, array in sorted(arrays.items()) if not _has_names(store, array)), None)


def attributes_of(store: str, array: Any) -> dict[str, Any]:
    """The attributes of an array as xarray gives them: _FillValue is the number that marks missing ones.

    In format 2, xarray and netCDF keep it as the value of chunks that were never written. Other programs leave 0 there,
    which marks nothing; their arrays have no names of dimensions. In format 3, that of floats is text in base64.

    Raises:
        ValueError: that text is damaged.
    """
    attributes = dict(array.attrs)
    if array.metadata.zarr_format == 2:
        if array.fill_value is not None and _has_names(store, array):
            attributes[_FILL_VALUE] = array.fill_value
    elif array.dtype.kind == "f" and isinstance(text := attributes.get(_FILL_VALUE), str):
        attributes[_FILL_VALUE] = _number(text)
    return attributes


def stamp_of(store: str) -> list[Any]:
    """A digest that changes when a file of a store is written.

    The folder's own time does not tell: a chunk that is written again leaves it as it is.

    Raises:
        OSError: a file or folder cannot be examined.
    """
    return identity_of_many(_sizes_and_times(store))


def _sizes_and_times(store: str) -> Iterator[tuple[int, int]]:
    for folder, folders, files in os.walk(store, onerror=_fail):
        folders.sort()
        for name in sorted(files):
            status = os.stat(os.path.join(folder, name))
            yield status.st_size, status.st_mtime_ns


def _fail(error: OSError) -> NoReturn:
    raise error


def _is_array(store: str) -> bool:
    """Check for a Zarr store that is a single array, not a group of them."""
    if os.path.exists(os.path.join(store, ".zarray")):
        return True
    try:
        with open(os.path.join(store, "zarr.json"), encoding="utf-8") as file:
            return json.load(file).get("node_type") == "array"
    except (OSError, ValueError, AttributeError):
        return False


def _has_names(store: str, array: Any) -> bool:
    if array.metadata.zarr_format == 2:
        if _NAMES in array.attrs:
            return True
        with open(os.path.join(store, array.path, ".zarray"), encoding="utf-8") as file:
            return "_NCZARR_ARRAY" in json.load(file)  # where netCDF's own library keeps the names
    names = array.metadata.dimension_names
    return array.ndim == 0 or (names is not None and None not in names)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raw = base64.b64decode(text, validate=True)
    if len(raw) != 8:
        raise ValueError(f"{_FILL_VALUE} {text!r}: expected a number, or 8 bytes in base64")
    return float(struct.unpack("<d", raw)[0])
