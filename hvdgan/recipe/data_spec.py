"""Describes the data to a recipe."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from hvdgan.errors import UserError
from hvdgan.values import sample_values
from hvdgan.values.sample_values import Layout, Missing, SampleValues, may_be_pictures
from hvdgan.values.transforms import Range


class ArraysByName(dict[str, Any]):
    """What belongs to arrays, by their names."""

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"no array {name}; the data have {', '.join(self) or 'none'}: name theirs with --arrays")


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """Facts about the data; `self.data` in a recipe.

    Args:
        shape: shape of a sample as networks see it, channels last: (H, W, C), (D, H, W, C), (T, C) or (C,).
        num_images: number of samples to train on, without the held-out ones.
        num_classes: number of classes, labelled 0 to num_classes - 1; 0 if the data has no labels.
        input_shape: shape of a sample's input, if the recipe is paired; else None.
        array_shapes: shapes of a sample's arrays (--arrays) as networks see them, channels last, by their names.
        constants_shape: shape of the fields that all samples share, (*space, K), as networks see them; None: there are
            none.
        conditions: names of the numbers in batch.conditions.
        values: maps between the data's numbers and those that networks see; None: nothing is known.
        layout: shapes of a sample and of its input in the data; None: `shape` and `input_shape`.
        constants: the fields that all samples share, uncropped, float32; None: there are none, or no data are open.
        pixels: True if the data are 8-bit pictures, also as uint8 arrays with the map range:0,255; False if they are
            other arrays; None: their map and shape decide.
        class_names: names of the classes 0, 1, ...; empty if the data do not name them.
        missing: number that networks see in place of missing ones (--missing); its mask is the last of the constants, 1
            where there are numbers and 0 where there are none.
        rate: samples of a wave per second, if the data are wave files (T, 1) in [-1, 1]; else None.
        domains: the same facts about each domain, by its name, if the recipe has several; those above are of the first.
    """

    shape: tuple[int, ...]
    num_images: int
    num_classes: int = 0
    input_shape: tuple[int, ...] | None = None
    array_shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=ArraysByName)
    constants_shape: tuple[int, ...] | None = None
    conditions: tuple[str, ...] = ()
    values: SampleValues | None = dataclasses.field(default=None, repr=False)
    layout: Layout | None = dataclasses.field(default=None, repr=False)
    constants: np.ndarray | None = dataclasses.field(default=None, repr=False, compare=False)
    pixels: bool | None = dataclasses.field(default=None, repr=False)
    class_names: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    missing: Missing | None = dataclasses.field(default=None, repr=False, compare=False)
    rate: int | None = None
    domains: "Mapping[str, DataSpec]" = dataclasses.field(default_factory=dict)

    @property
    def channels(self) -> int:
        """Number of channels of a sample."""
        return self.shape[-1]

    @property
    def image_size(self) -> int:
        """Height and width of a square picture (pixels).

        Raises:
            UserError: the samples are not square pictures, so that the recipe cannot be used with these data.
        """
        if len(self.shape) != 3 or self.shape[0] != self.shape[1]:
            raise UserError(
                f"the recipe takes square pictures (H, H, C), and the data have samples of shape {self.shape}; crop "
                "them with --crop, bring pictures to a square with --image-size and --fit, or take another recipe"
            )
        return self.shape[0]

    @property
    def is_pictures(self) -> bool:
        """True for grey or RGB pictures, whose 0 to 255 became [-1, 1]."""
        if self.pixels is not None:
            return self.pixels
        pixels = self.values is None or self.values.images.chains == ((Range(0, 255),),)
        return pixels and may_be_pictures(self.shape)

    @property
    def record_layout(self) -> Layout:
        """Shapes of a sample and of its input in the data."""
        return self.layout or Layout(self.shape, self.input_shape)

    def physical(self, numbers: Any, part: str = "images") -> Any:
        """Map numbers as networks see them back to the units of the data; gradients flow through.

        The operations are Keras's, so that a network can be made of them, too.

        Args:
            numbers: samples (B, ..., C), inputs, an array, or conditions (B, k).
            part: kind of the numbers: images, inputs, conditions, or the name of an array.
        """
        if self.values is None:
            return numbers
        own = self.values.parts()
        arrays = {name: each for name, each in self.values.arrays.items() if own.get(name) is None}
        value_map = ArraysByName(own | arrays)[part]
        return numbers if value_map is None else value_map.inverse_of(numbers, ops)

    def to_json(self) -> dict[str, Any]:
        """As JSON types, without the constants."""
        facts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del facts["constants"]
        for name in ("values", "missing"):
            facts[name] = facts[name] and facts[name].to_json()
        facts["domains"] = {name: each.to_json() for name, each in self.domains.items()}
        return {**facts, "layout": self.layout and dataclasses.asdict(self.layout)}


def of_json(facts: dict[str, Any]) -> DataSpec:
    """Make a DataSpec again from to_json(); other facts raise a KeyError or a TypeError."""
    facts = _tuples(facts)
    facts["values"] = facts["values"] and sample_values.of_json(facts["values"])
    facts["missing"] = facts["missing"] and sample_values.missing_of_json(facts["missing"])
    facts["array_shapes"] = ArraysByName(_tuples(facts["array_shapes"]))
    facts["layout"] = facts["layout"] and Layout(**_tuples(facts["layout"]))
    facts["domains"] = {name: of_json(each) for name, each in facts["domains"].items()}
    return DataSpec(**facts)


def _tuples(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
