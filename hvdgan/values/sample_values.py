"""What the numbers of a sample mean: the shapes of its parts, and the maps between data and networks."""

import base64
import contextlib
import dataclasses
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from hvdgan.errors import UserError
from hvdgan.values import value_map
from hvdgan.values.transforms import Range
from hvdgan.values.value_map import ValueMap

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The parts of a sample, which lie one after the other in a record of the data.

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
        """Shape of the input that networks see; a cropped one is smaller by the same factor."""
        if self.input_shape is None or self.crop is None:
            return self.input_shape
        return (*(size // factor for size, factor in zip(self.crop, self.factors, strict=True)), self.input_shape[-1])

    @property
    def factors(self) -> Shape:
        """How many times longer the sample is than its input, along each axis in space."""
        inputs = self.input_shape or self.shape
        return tuple(mine // its for mine, its in zip(self.shape[:-1], inputs[:-1], strict=False))

    @property
    def record(self) -> Shape:
        """Shape of a record: that of the sample; with an input, more channels, or (K,) if they differ in space."""
        if self.input_shape is None:
            return self.shape
        if self._are_stacked:
            return (*self.shape[:-1], self.input_shape[-1] + self.shape[-1])
        return (math.prod(self.input_shape) + math.prod(self.shape),)

    @property
    def _are_stacked(self) -> bool:
        return self.input_shape is not None and self.input_shape[:-1] == self.shape[:-1]

    def joined(self, inputs: np.ndarray, samples: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Records of inputs (B, *input_shape) and samples (B, *shape)."""
        parts = [inputs, samples]
        if not self._are_stacked:
            parts = [part.reshape(len(part), -1) for part in parts]
        return np.concatenate([part.astype(dtype, copy=False) for part in parts], axis=-1)

    def split(self, records: Any, reshape: Callable[[Any, Any], Any] = np.reshape) -> tuple[Any, Any]:
        """Inputs, or None, and samples, of records (B, ...): an array, or a tensor with its own `reshape`."""
        if self.input_shape is None:
            return None, records
        if self._are_stacked:
            return records[..., : self.input_shape[-1]], records[..., self.input_shape[-1] :]
        first = math.prod(self.input_shape)
        count = len(records) if isinstance(records, np.ndarray) else records.shape[0]
        return (
            reshape(records[:, :first], (count, *self.input_shape)),
            reshape(records[:, first:], (count, *self.shape)),
        )


@dataclasses.dataclass(frozen=True)
class SampleValues:
    """The maps of a sample itself, its input, its conditions, and the fields that all samples share; None: no such."""

    images: ValueMap
    inputs: ValueMap | None = None
    conditions: ValueMap | None = None
    constants: ValueMap | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: None if each is None else each.to_json() for name, each in self.parts().items()}

    def parts(self) -> dict[str, ValueMap | None]:
        """The maps by the names of the parts."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def lines(self) -> list[str]:
        """A description of each map, for the start of a run."""
        return [f"{name}{_named(each)}: {each}" for name, each in self.parts().items() if each is not None]


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
    return "" if all(name.isdecimal() for name in names) else f" ({', '.join(names)})"


def of_json(values: dict[str, Any]) -> SampleValues:
    """Make the maps again from to_json()."""
    maps: dict[str, Any] = {name: None if each is None else value_map.of_json(each) for name, each in values.items()}
    return SampleValues(**maps)


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
