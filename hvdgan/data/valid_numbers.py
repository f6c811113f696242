"""The numbers of an array that its file declares to be there and valid.

Reference: CF Conventions 1.11, sections 2.5.1 and 8.1; NetCDF Users Guide, "Attribute Conventions".
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hvdgan.data.bad_files import BadImage
from hvdgan.errors import UserError

_MISSING = ("_FillValue", "missing_value")
_LIMITS = ("valid_range", "valid_min", "valid_max")
ATTRIBUTES = (*_MISSING, *_LIMITS)
_UNWRITTEN = {"f4": 9.969209968386869e36, "f8": 9.969209968386869e36}
_UNWRITTEN |= {f"i{size}": -(2 ** (8 * size - 1)) + (2 if size == 8 else 1) for size in (2, 4, 8)}


@dataclasses.dataclass(frozen=True)
class ValidNumbers:
    """All numbers but those that stand for missing ones, between two limits."""

    marks: Sequence[float] = ()
    low: float | None = None
    high: float | None = None
    slack: float = 0

    @property
    def declares(self) -> bool:
        """Whether some numbers are not valid."""
        return bool(self.marks) or self.low is not None or self.high is not None

    def checked(self, samples: np.ndarray, named: Callable[[int], str] | None = None) -> np.ndarray:
        """Some samples (B, ...), floats with NaN in place of all other numbers."""
        if not self.declares:
            return samples
        wrong = np.zeros(samples.shape, bool)
        with np.errstate(all="ignore"):
            for mark in self.marks:
                wrong |= (samples >= mark - self.slack) & (samples <= mark + self.slack)
            if self.low is not None:
                wrong |= samples < self.low - self.slack
            if self.high is not None:
                wrong |= samples > self.high + self.slack
        if not wrong.any():
            return samples
        if samples.dtype.kind == "f":
            return np.where(wrong, samples.dtype.type(np.nan), samples)
        place = int(np.argmax(wrong.reshape(len(wrong), -1).any(axis=1)))
        raise BadImage(
            named(place) if named else str(place),
            f"{np.count_nonzero(wrong[place]):,} of {wrong[place].size:,} numbers, such as {samples[wrong][0]}, are "
            f"missing or not valid by the attributes of the file ({', '.join(ATTRIBUTES)})",
        )


def plain_numbers(name: str, attributes: Mapping[str, Any], dtype: np.dtype) -> ValidNumbers:
    """What attributes say of the numbers of an array of HDF5, or of Zarr without names of dimensions."""
    if dtype.kind not in "fiu":
        return ValidNumbers()
    for packing, neutral in (("scale_factor", 1), ("add_offset", 0)):
        if set(numbers := _numbers(attributes.get(packing))) - {neutral}:
            raise UserError(
                f"--data {name}: its numbers are packed, with {packing} {', '.join(f'{each:g}' for each in numbers)}, "
                "which is undone in NetCDF, and in Zarr with names of dimensions, only; unpack them, or give an HDF5 "
                "file with packing as in NetCDF a name that ends in .nc"
            )
    marks = [mark for each in _MISSING for mark in _numbers(attributes.get(each))]
    return ValidNumbers(marks, *_limits(attributes))


def of_variable(variable: Any, *, of_netcdf: bool) -> ValidNumbers:
    """What is left to check in an xarray variable, of which xarray has decoded the missing numbers as NaN."""
    encoding = variable.encoding
    stored = np.dtype(encoding.get("dtype", variable.dtype))
    if variable.dtype.kind not in "fiu" or stored.kind not in "fiu":
        return ValidNumbers()
    scale, offset = float(encoding.get("scale_factor", 1)), float(encoding.get("add_offset", 0))
    is_packed, is_unsigned = (scale, offset) != (1, 0), encoding.get("_Unsigned") == "true"

    def meaning(number: float) -> float:
        if stored.kind == "f" or not isinstance(number, int):
            return number  # limits of another type than the packed numbers are not packed
        number = number % 2 ** (8 * stored.itemsize) if is_unsigned else number
        return number * scale + offset if is_packed else number

    low, high = (None if limit is None else meaning(limit) for limit in _limits(variable.attrs))
    low, high = (high, low) if scale < 0 else (low, high)
    default = _UNWRITTEN.get(stored.str[1:]) if stored.kind == "f" or of_netcdf else None
    marks = [] if default is None or "_FillValue" in encoding or is_unsigned else [meaning(default)]
    return ValidNumbers(marks, low, high, abs(scale) / 2 if is_packed and stored.kind != "f" else 0)


def _limits(attributes: Mapping[str, Any]) -> tuple[float | None, float | None]:
    both = _numbers(attributes.get("valid_range"))
    if len(both) == 2:
        return both[0], both[1]
    low, high = (next(iter(_numbers(attributes.get(name))), None) for name in _LIMITS[1:])
    return low, high


def _numbers(attribute: Any) -> list[float]:
    """The numbers of an attribute without NaN; empty if it is missing, or a text."""
    found = np.ravel(np.asarray(attribute))
    return found[~np.isnan(found)].tolist() if found.dtype.kind in "fiu" else []
