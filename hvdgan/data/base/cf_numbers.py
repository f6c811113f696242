"""Numbers in files by the CF conventions: how they are decoded, and which of them are missing or not valid.

Reference: CF Conventions 1.11, sections 2.5.1 and 8.1; NetCDF Users Guide, "Attribute Conventions".
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hvdgan.cli.errors import RunError, UserError, in_one_line

_DATES = re.compile(r"\s*\w+\s+since\s")
_PACKING = {"scale_factor": 1, "add_offset": 0}
_MISSING = ("_FillValue", "missing_value")
_LIMITS = ("valid_range", "valid_min", "valid_max")
ATTRIBUTES = (*_PACKING, *_MISSING, *_LIMITS)
"""names of the attributes that change what numbers mean"""
_UNWRITTEN = {"f4": 9.969209968386869e36, "f8": 9.969209968386869e36}
_UNWRITTEN_INTEGERS = {"i2": -(2**15) + 1, "i4": -(2**31) + 1, "i8": -(2**63) + 2}
Reader = Callable[[np.ndarray], np.ndarray]


def is_date(units: Any) -> bool:
    """Check for units of dates, such as `hours since 2000-01-01`."""
    return bool(_DATES.match(str(units)))


@dataclasses.dataclass(frozen=True)
class Rules:
    """What a file declares about the numbers of an array.

    Args:
        name: name of the array, for messages.
        marks: numbers that stand for missing ones, each with the reason in words and what to do.
        low, high: least and largest valid number; None: there is no such limit.
    """

    name: str
    marks: Sequence[tuple[Any, str]] = ()
    low: Any = None
    high: Any = None

    def broken_by(self, samples: np.ndarray, *, marks_only: bool = False) -> tuple[int, str] | None:
        """The first of some samples that has a missing or an invalid number.

        Args:
            samples: the samples, (B, ...).
            marks_only: True if numbers outside of the limits do not count.

        Returns:
            Its place among the samples, and the reason; None if none has.
        """
        for mark, reason in self.marks:
            if (found := samples == mark).any():
                return _first(found), f"{self.name} has the number {mark:g}, {reason}"
        if marks_only:
            return None
        outside = np.zeros((), bool)
        if self.low is not None:
            outside = outside | (samples < self.low)
        if self.high is not None:
            outside = outside | (samples > self.high)
        if not outside.any():
            return None
        low, high = ("any" if limit is None else f"{limit:g}" for limit in (self.low, self.high))
        return _first(outside), (
            f"{self.name} has the number {samples[outside][0]:g}, outside of its valid range, {low} to {high}, so that "
            "by the CF conventions it is missing; write NaN or another number in its place, or correct the attribute "
            + " or ".join(_LIMITS)
        )


def rules_of(
    name: str,
    attributes: Mapping[str, Any],
    dtype: np.dtype,
    meaning: Reader = lambda numbers: numbers,
    *,
    of_netcdf: bool = False,
) -> Rules:
    """What the attributes of an array declare about its numbers.

    Args:
        name: name for messages.
        attributes: the attributes.
        dtype: type of the numbers as they are stored.
        meaning: function that decodes stored numbers (K,); those that it turns into NaN are known to be missing.
        of_netcdf: True if integers that were never written have NetCDF's value.
    """
    if dtype.kind not in "fiu":
        return Rules(name)
    marks: list[tuple[Any, str]] = []
    for attribute in _MISSING:
        numbers = meaning(_stored(_numbers_in(attributes.get(attribute)), dtype))
        reason = (
            f"which its attribute {attribute} declares to be missing; write NaN or another number in its place, or "
            "correct the attribute"
        )
        marks += [(number, reason) for number in numbers if not np.isnan(number)]
    unwritten = _UNWRITTEN | (_UNWRITTEN_INTEGERS if of_netcdf else {})
    if not {"_FillValue", "_Unsigned"} & attributes.keys() and dtype.str[1:] in unwritten:
        number = meaning(np.array([unwritten[dtype.str[1:]]], dtype))[0]
        reason = (
            "which NetCDF leaves where nothing was written, and no attribute _FillValue is there; write NaN or another "
            "number in its place, or, if this one is meant, add an attribute _FillValue with another number"
        )
        marks.append((number, reason))
    low, high = _limits(attributes, dtype, meaning)
    return Rules(name, marks, low, high)


def refuse_packed(where: str, attributes: Mapping[str, Any]) -> None:
    """Refuse numbers that are stored with a scale or an offset, where these are not undone.

    Raises:
        UserError: they are.
    """
    found = [
        f"{name} {', '.join(f'{number:g}' for number in numbers)}"
        for name, neutral in _PACKING.items()
        if set(numbers := _numbers_in(attributes.get(name))) - {neutral}
    ]
    if found:
        raise UserError(
            f"--data {where}: its numbers are packed, with {' and '.join(found)}, which is not undone in HDF5, because "
            "programs differ in what it means; unpack them, or, if scale_factor is a factor of the stored numbers as "
            "in NetCDF, give the file a name that ends in .nc"
        )


class Decoder:
    """Reads a variable, and replaces its numbers by those that they mean.

    Args:
        where: name for messages, with the file.
        name: name of the variable.
        variable: the variable, as xarray gives it.
        read: function that reads its numbers as they are stored.
        of_netcdf: True if the file is NetCDF, which leaves a number of its own where no integer was written.

    Raises:
        UserError: it holds dates.
    """

    def __init__(self, where: str, name: str, variable: Any, read: Reader, *, of_netcdf: bool = False) -> None:
        if is_date(variable.attrs.get("units", "")):
            raise UserError(
                f"--data {where}: holds dates ({variable.attrs['units']}); expected numbers, such as the hour of the "
                "day or the day of the year in a variable of its own"
            )
        self._where, self._name, self._variable, self._read = where, name, variable, read
        self._of_netcdf = of_netcdf
        self.shape: tuple[int, ...] = variable.shape
        self.unit = str(variable.attrs.get("units", ""))
        self._type: np.dtype = variable.dtype.newbyteorder("=")
        self.dtype = self._decoded(np.zeros((1,) * len(self.shape), self._type)).dtype

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Some of its entries, as numbers that mean what they say; NaN where one is missing.

        Raises:
            RunError: the file has changed, or the disk has failed.
        """
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
        """All of it."""
        return self._decoded(np.asarray(self._variable.values))

    def rules(self) -> Rules:
        """What its attributes declare about numbers that decoding leaves as they are."""
        return self._rules

    @functools.cached_property
    def _rules(self) -> Rules:
        if not self.shape:
            return Rules(self._name)

        def meaning(numbers: np.ndarray) -> np.ndarray:
            return self._decoded(numbers.reshape(-1, *(1,) * (len(self.shape) - 1))).reshape(-1)

        return rules_of(self._name, self._variable.attrs, self._type, meaning, of_netcdf=self._of_netcdf)

    def _decoded(self, raw: np.ndarray) -> np.ndarray:
        import xarray

        variable = xarray.Variable(self._variable.dims, raw, self._variable.attrs)
        return np.asarray(xarray.conventions.decode_cf_variable(self._name, variable, decode_times=False).values)


@dataclasses.dataclass(frozen=True)
class Nameless:
    """A Zarr array with what the decoder needs of an xarray variable."""

    array: Any
    attrs: dict[str, Any]

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
    def values(self) -> np.ndarray:
        return np.asarray(self.array[...])


def _limits(attributes: Mapping[str, Any], dtype: np.dtype, meaning: Reader) -> tuple[Any, Any]:
    """The least and the largest valid number in the units of decoded numbers; None where there is no limit.

    Limits of which the least is not below the largest are placeholders, and no limits.
    """
    both = _numbers_in(attributes.get("valid_range"))
    if len(both) != 2:
        both = [(_numbers_in(attributes.get(name)) or [None])[0] for name in _LIMITS[1:]]
    scale = (_numbers_in(attributes.get("scale_factor")) or [1])[0]
    if scale <= 0:
        return None, None  # the least packed number would be the largest
    is_packed = dtype.kind in "iu" and bool({*_PACKING, "_Unsigned"} & attributes.keys())
    found: list[Any] = []
    slack: list[float] = []
    for limit in both:
        is_whole = is_packed and isinstance(limit, int)
        if is_whole:  # whole numbers are those of the packed ones
            limits = np.iinfo(dtype)
            if "_Unsigned" not in attributes:
                limit = min(max(limit, limits.min), limits.max)
            limit = meaning(np.array([limit]).astype(dtype))[0]
        found.append(limit)
        slack.append(scale / 2 if is_packed and not is_whole else 0)  # for the rounding of unpacked numbers
    low, high = found
    if low is not None and high is not None and low >= high:
        return None, None
    decoded = meaning(np.zeros(1, dtype)).dtype
    return (
        None if low is None else _in_type(low - slack[0], decoded),
        None if high is None else _in_type(high + slack[1], decoded),
    )


def _in_type(limit: Any, dtype: np.dtype) -> Any:
    """A limit in the type of the numbers if these are floats; one beyond the type is infinite."""
    with np.errstate(over="ignore"):
        return dtype.type(limit) if dtype.kind == "f" else limit


def _numbers_in(attribute: Any) -> list[Any]:
    """The numbers of an attribute, which may be text; empty if it is missing or holds none. NaN is left out."""
    found: list[Any] = []
    for each in np.ravel(np.asarray(attribute)).tolist():
        text = each.decode(errors="replace") if isinstance(each, bytes) else each
        for part in text.replace(",", " ").split() if isinstance(text, str) else [text]:
            try:
                found.append(float(part) if isinstance(part, str) else part)
            except ValueError:
                continue
    return [each for each in found if isinstance(each, int | float) and not math.isnan(each)]


def _stored(numbers: Sequence[Any], dtype: np.dtype) -> np.ndarray:
    """The numbers that an array of this type can hold, in this type."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.array(numbers, np.float64).astype(dtype)
    limits = np.iinfo(dtype)
    held = [int(each) for each in numbers if limits.min <= each <= limits.max and each == int(each)]
    return np.array(held, dtype)


def _first(found: np.ndarray) -> int:
    """The number of the first sample with a true element."""
    return int(np.argmax(found.reshape(len(found), -1).any(axis=1)))
