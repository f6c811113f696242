"""What the numbers of a sample mean: the shapes of its parts, and the maps between data and networks."""

import base64
import contextlib
import dataclasses
import math
import zlib
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from hvdgan.errors import UserError
from hvdgan.values import value_map
from hvdgan.values.transforms import Range
from hvdgan.values.value_map import ValueMap

Shape = tuple[int, ...]
T = TypeVar("T")
_ARRAYS = "arrays/"
"""what stands before the name of an array among the parts of a sample"""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The shapes of a sample and of its input, and the part of them that networks see.

    Args:
        shape: shape of the sample itself, channels last, as the data have it.
        input_shape: shape of its input; None if it has none.
        crop: height and width, or depth, height and width, of the part that networks see; None: all of it.
    """

    shape: Shape
    input_shape: Shape | None = None
    crop: Shape | None = None

    @property
    def seen(self) -> Shape:
        """Shape of the sample that networks see."""
        return self.shape if self.crop is None else (*self.crop, self.shape[-1])

    @property
    def input_seen(self) -> Shape | None:
        """Shape of the input that networks see."""
        return self.input_shape and self.seen_of(self.input_shape)

    def seen_of(self, shape: Shape) -> Shape:
        """Shape that networks see of a part of this shape; a cropped field is smaller by the same factors."""
        if self.crop is None or not is_field(shape, self.shape):
            return shape
        return (*(size // factor for size, factor in zip(self.crop, self.factors(shape), strict=True)), shape[-1])

    def whole(self, seen: Shape) -> Shape:
        """Shape of a part of which networks see this shape, before the crop."""
        if self.crop is None or not is_field(seen, self.shape):
            return seen
        space = zip(self.shape, seen[:-1], self.crop, strict=False)
        return (*(size * part // length for size, part, length in space), seen[-1])

    def factors(self, shape: Shape) -> Shape:
        """How many times longer the sample is than a field, along each axis in space."""
        return tuple(mine // its for mine, its in zip(self.shape[:-1], shape[:-1], strict=True))


@dataclasses.dataclass(frozen=True)
class SampleValues:
    """The maps of a sample itself, its input, its conditions, and the fields that all samples share; None: no such.

    Those of further arrays have the names of these.
    """

    images: ValueMap
    inputs: ValueMap | None = None
    conditions: ValueMap | None = None
    constants: ValueMap | None = None
    arrays: Mapping[str, ValueMap] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {name: None if each is None else each.to_json() for name, each in self.parts().items()}

    def parts(self) -> dict[str, ValueMap | None]:
        """The maps by the names of the parts; those of arrays as `arrays/NAME`."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "arrays"}
        return own | named_arrays(self.arrays)

    def lines(self) -> list[str]:
        """A description of each map, for the start of a run."""
        return [f"{name}{_named(each)}: {each}" for name, each in self.parts().items() if each is not None]


def of_parts(parts: Mapping[str, ValueMap | None]) -> SampleValues:
    """Make the maps again from parts()."""
    arrays: dict[str, Any] = arrays_of(parts)
    own: dict[str, Any] = {name: each for name, each in parts.items() if not name.startswith(_ARRAYS)}
    return SampleValues(**own, arrays=arrays)


def named_arrays(arrays: Mapping[str, T]) -> dict[str, T]:
    """What belongs to arrays, by the names of the parts of a sample."""
    return {f"{_ARRAYS}{name}": each for name, each in arrays.items()}


def arrays_of(parts: Mapping[str, T]) -> dict[str, T]:
    """What belongs to arrays, by their names, of what belongs to the parts of a sample."""
    return {name.removeprefix(_ARRAYS): each for name, each in parts.items() if name.startswith(_ARRAYS)}


def is_field(shape: Shape, of_sample: Shape) -> bool:
    """Whether a part has as many axes in space as the sample, along which it is cropped and mirrored with it."""
    return len(shape) == len(of_sample) > 1


def may_be_pictures(shape: Shape) -> bool:
    """Whether samples of this shape, channels last, can be grey or RGB pictures."""
    return len(shape) == 3 and shape[-1] in (1, 3)


def are_pixels(values: SampleValues, layout: Layout, dtype: np.dtype) -> bool:
    """True for uint8 arrays of 1 or 3 channels with --values range:0,255."""
    maps = [each for each in (values.images, values.inputs) if each is not None]
    alike = dtype == np.uint8 and may_be_pictures(layout.seen) and layout.input_seen in (None, layout.seen)
    return alike and all(chain == (Range(0, 255),) for each in maps for chain in each.chains)


def of_pixels(channels: int, *, paired: bool) -> SampleValues:
    """The map of 8-bit pictures, from 0 to 255 to [-1, 1], and of their inputs if they are paired."""
    pixels = ValueMap(((Range(0, 255),),), tuple(map(str, range(channels))))
    return SampleValues(pixels, pixels if paired else None)


def _named(value_map: ValueMap) -> str:
    """Names and units of the channels, unless they are mere numbers without a unit."""
    units = value_map.units or ("",) * len(value_map.channels)
    names = [f"{name} [{unit}]" if unit else name for name, unit in zip(value_map.channels, units, strict=True)]
    named = ", ".join("channel " * each.partition(" ")[0].isdecimal() + each for each in names)
    return "" if all(name.isdecimal() for name in names) else f" ({named})"


def of_json(values: dict[str, Any]) -> SampleValues:
    """Make the maps again from to_json()."""
    return of_parts({name: None if each is None else value_map.of_json(each) for name, each in values.items()})


@dataclasses.dataclass(frozen=True, eq=False)
class Missing:
    """What networks see in place of missing numbers."""

    fill: float
    """number that networks see, after the map"""
    mask: np.ndarray | None = None
    """True where no sample has a number, (*space, C); None: there are no such places"""

    @property
    def field(self) -> np.ndarray | None:
        """1 where samples have all their numbers and 0 elsewhere, (*space, 1) float32; None without a mask."""
        return None if self.mask is None else (~np.any(self.mask, axis=-1, keepdims=True)).astype(np.float32)

    def filled(self, stored: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """The mapped numbers of samples (B, ..., C), with the declared one where the stored number is NaN."""
        return np.where(np.isnan(stored), np.float32(self.fill), seen)

    def restored(self, samples: np.ndarray) -> np.ndarray:
        """Samples in the units of the data (B, ..., C), with NaN where all samples of the data have no number."""
        return samples if self.mask is None else np.where(self.mask, np.float32(np.nan), samples)

    def to_json(self) -> dict[str, Any]:
        if self.mask is None:
            return {"fill": self.fill}
        packed = base64.b85encode(zlib.compress(np.packbits(self.mask).tobytes())).decode()
        return {"fill": self.fill, "shape": list(self.mask.shape), "mask": packed}


def missing_of_json(values: dict[str, Any]) -> Missing:
    """Make it again from to_json()."""
    if "mask" not in values:
        return Missing(values["fill"])
    count = math.prod(values["shape"])
    packed = zlib.decompressobj().decompress(base64.b85decode(values["mask"]), -(-count // 8))
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=count)
    return Missing(values["fill"], bits.astype(bool).reshape(values["shape"]))


def parse_missing(text: str) -> float:
    """Read the value of --missing: the finite number after fill:."""
    word, _, number = text.partition(":")
    with contextlib.suppress(ValueError):
        if word == "fill" and math.isfinite(fill := float(number)):
            return fill
    raise UserError(f"--missing {text}: expected fill:NUMBER, such as fill:0")
