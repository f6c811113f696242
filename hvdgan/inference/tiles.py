"""Computes whole fields by overlapping tiles, whose margins are as wide as the networks see; the tiles fit exactly."""

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.errors import UserError
from hvdgan.inference.any_size import AnySizeNets, sized
from hvdgan.inference.places import STRIDE, PlaceRandom, Window
from hvdgan.recipe import DataSpec
from hvdgan.recipe.batch import scoped
from hvdgan.recipe.contract import prepare
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.outputs import generated
from hvdgan.recipe.recipe import Recipe
from hvdgan.values.sample_values import Shape, is_field, named_arrays

_MOST = 2**20
"""pixels of the largest field on which the reach is measured"""
_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Tile:
    """A part of a field that is computed alone, in cells: where its window begins, and which part of that is right."""

    first: Shape
    window: Shape
    begin: Shape
    end: Shape


def tiles_of(size: Shape, tile: Shape, reach: Shape, step: Shape) -> list[Tile]:
    """Cut a field into tiles, whose windows all have one size and never leave the field.

    So padding is only at the edges of the field itself, and windows begin at multiples of the step.
    """
    axes = []
    for cells, wanted, far, stride in zip(size, tile, reach, step, strict=True):
        halo = -(-(far + stride) // stride) * stride
        inner = max(wanted // stride, 1) * stride
        window = min(inner + 2 * halo, cells)
        inner = cells if window == cells else inner
        begins = range(0, cells, inner)
        axes.append([(min(max(b - halo, 0), cells - window), window, b, min(b + inner, cells)) for b in begins])
    return [Tile(*zip(*each, strict=True)) for each in itertools.product(*axes)]


class WholeFields:
    """The samples of a recipe for fields of any size, of which any part can be computed alone."""

    def __init__(self, recipe: Recipe, nets: Nets, *, seed: int, truncation: float = 1.0) -> None:
        self._recipe, self._nets, self._seed, self._truncation = recipe, AnySizeNets(nets), seed, truncation
        self._functions: dict[Shape, Callable[..., tf.Tensor]] = {}
        spec = recipe.data
        fields = [each for each in _shapes(spec).values() if is_field(each, spec.shape)]
        sides = list(zip(spec.shape[:-1], *(each[:-1] for each in fields), strict=True))
        self.pixels = tuple(math.lcm(*(side[0] // each for each in side)) for side in sides)
        """pixels of a sample in a cell along each axis"""
        self.step = (1,) * len(self.pixels)
        self.reach = self._measured_reach()
        self.step = self._measured_step()

    def __call__(self, number: int, tile: Tile, parts: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute a tile of the sample with this number, (*space, C) as networks see it.

        `parts` are those of the whole field, (1, ...) each, and what describes it.
        """
        size = tuple(side // many for side, many in zip(_space(parts, self._recipe.data), self.pixels, strict=True))
        window = {name: self._cut(name, each, size, tile) for name, each in parts.items()}
        images = self._function(tile.window)(
            tf.constant([number], tf.int64), tf.constant(tile.first, tf.int64), window
        ).numpy()[0]
        each_axis = zip(tile.begin, tile.end, tile.first, self.pixels, strict=True)
        return images[tuple(slice((b - first) * many, (e - first) * many) for b, e, first, many in each_axis)]

    def tiles(self, space: Shape, tile: int) -> list[Tile]:
        """The tiles of a field of this height and width, each of about `tile` pixels."""
        size = tuple(side // many for side, many in zip(space, self.pixels, strict=True))
        for side, many, step in zip(space, self.pixels, self.step, strict=True):
            if side % (many * step):
                raise UserError(
                    f"--whole: fields of {' x '.join(map(str, space))}; the networks take sides that are multiples of "
                    f"{many * step}: cut the fields, or pad them"
                )
        return tiles_of(size, tuple(max(tile // many, 1) for many in self.pixels), self.reach, self.step)

    @property
    def reach_in_pixels(self) -> Shape:
        """How far a place of the samples depends on others."""
        return self._side(self.reach)

    def region(self, tile: Tile) -> tuple[slice, ...]:
        """The pixels of a tile in its field."""
        each_axis = zip(tile.begin, tile.end, self.pixels, strict=True)
        return tuple(slice(begin * many, end * many) for begin, end, many in each_axis)

    def _cut(self, name: str, whole: np.ndarray, size: Shape, tile: Tile) -> tf.Tensor:
        """The part of a field that a window shows; others stay as they are."""
        if not is_field(whole.shape[1:], self._recipe.data.shape):
            return tf.constant(whole)
        each_axis = zip(whole.shape[1:-1], size, tile.first, tile.window, strict=True)
        cuts = [slice(first * n // cells, (first + part) * n // cells) for n, cells, first, part in each_axis]
        return tf.constant(whole[(slice(None), *cuts)])

    def _function(self, cells: Shape) -> Callable[..., tf.Tensor]:
        if cells not in self._functions:
            self._functions[cells] = tf.function(self._computed(cells), autograph=False)
        return self._functions[cells]

    def _computed(self, cells: Shape) -> Callable[..., tf.Tensor]:
        """A function that computes samples (1, *space, C) of a window of this size."""
        recipe = copy.copy(self._recipe)
        recipe.data = sized(recipe.data, self._side(cells))

        def compute(
            number: tf.Tensor, first: tf.Tensor, parts: dict[str, tf.Tensor], watch: Any = lambda drawn: None
        ) -> tf.Tensor:
            blank = {} if "images" in parts else {"images": tf.zeros((1, *recipe.data.shape))}
            random = PlaceRandom(self._seed, number, Window(first, cells), watch=watch)
            batch = prepare(recipe, {**blank, **parts}, random)
            batch.truncation = self._truncation
            return generated(recipe, self._nets, scoped(batch, "sample"))["images"]

        return compute

    def _side(self, cells: Shape) -> Shape:
        return tuple(cell * many for cell, many in zip(cells, self.pixels, strict=True))

    def _trial(self, cells: Shape) -> dict[str, np.ndarray]:
        """Parts of a field of noise, without those that are no fields, which are 0."""
        spec, numbers = sized(self._recipe.data, self._side(cells)), np.random.default_rng(0)
        parts = {
            name: (numbers.normal(size=(1, *shape)) * is_field(shape, spec.shape)).astype(np.float32)
            for name, shape in _shapes(spec).items()
        }
        if spec.conditions:
            parts["conditions"] = np.zeros((1, len(spec.conditions)), np.float32)
        return parts | ({"labels": np.zeros(1, np.int32)} if spec.num_classes else {})

    def _measured_reach(self) -> Shape:
        """How far, in cells, a place of the samples depends on others, by the gradient of one in the middle."""
        cells = tuple(side // many for side, many in zip(self._recipe.data.shape, self.pixels, strict=False))
        while (reach := self._reach_in(cells)) is None:
            self._nets.refuse_whole_fields(by_slope=True)
            cells = tuple(2 * each for each in cells)
            if math.prod(self._side(cells)) > _MOST:
                named, side = " and ".join(self._nets.called), " x ".join(map(str, self._side(cells)))
                raise UserError(f"--whole: network {named}: a place depends on others in all of {side}, or of more")
        return reach

    def _reach_in(self, cells: Shape) -> Shape | None:
        """The same in a field of this size; None if it ends at an edge of the field."""
        middle, watched = [each // 2 for each in cells], list[tf.Tensor]()
        parts = {name: tf.constant(each) for name, each in self._trial(cells).items()}
        fields = [each for each in parts.values() if is_field(tuple(each.shape[1:]), self._recipe.data.shape)]
        with tf.GradientTape() as tape:

            def watch(drawn: tf.Tensor) -> None:
                tape.watch(drawn)
                watched.append(drawn)

            tape.watch(fields)
            first = tf.zeros(len(cells), tf.int64)
            images = self._computed(cells)(tf.constant([0], tf.int64), first, parts, watch)
            block = images[(0, *(slice(at * n, (at + 1) * n) for at, n in zip(middle, self.pixels, strict=True)))]
            loss = tf.reduce_sum(block * np.random.default_rng(1).normal(size=block.shape).astype(np.float32))
        slopes = [slope for slope in tape.gradient(loss, [*fields, *watched]) if slope is not None]
        return _extent([np.asarray(each) for each in slopes], cells, middle)

    def _measured_step(self) -> Shape:
        """The stride of the networks in cells: windows that begin at its multiples are equal to parts of the field."""
        most = max(STRIDE // max(min(self.pixels), len(self.pixels) - 1), 1)  # fewer cells of volumes
        cells = tuple(-(-(2 * far + 4 * most) // most) * most for far in self.reach)
        parts = self._trial(cells)
        axes = (0,) * len(cells)
        whole = self(0, Tile(axes, cells, axes, cells), parts)
        step, window = 1, tuple(each - most for each in cells)
        while step <= most:
            first = (step,) * len(cells)
            begin = tuple(step + step + far for far in self.reach)
            end = tuple(size + step - step - far for size, far in zip(window, self.reach, strict=True))
            self.step = first
            tile = Tile(first, window, begin, end)
            apart = np.abs(self(0, tile, parts) - whole[self.region(tile)]).max(initial=0.0)
            if apart <= _TOLERANCE * max(1.0, np.abs(whole).max()):
                return first
            step *= 2
        raise UserError(
            f"--whole: a part of a field that is computed alone differs from the whole by {apart:.3g}, since draw(), "
            f"generate() or network {', '.join(self._nets.called)} depends on the size of the field or on the place "
            "in it; give fields of the size in training without --whole"
        )


def _shapes(spec: DataSpec) -> dict[str, Shape]:
    """The shapes of what networks get of a sample; its truth is not among it if there are inputs."""
    given = {"images": spec.shape} if spec.input_shape is None else {"inputs": spec.input_shape}
    constants = {} if spec.constants_shape is None else {"constants": spec.constants_shape}
    return {**given, **named_arrays(spec.array_shapes), **constants}


def _space(parts: Mapping[str, np.ndarray], spec: DataSpec) -> Shape:
    """Height and width of the sample that is made of the parts of a field."""
    name, shape = next(iter(_shapes(spec).items()))
    each_axis = zip(parts[name].shape[1:-1], shape, spec.shape[:-1], strict=False)
    return tuple(mine * whole // its for mine, its, whole in each_axis)


def _extent(slopes: Sequence[np.ndarray], cells: Shape, middle: Sequence[int]) -> Shape | None:
    """How far from the middle some slope (1, *space, C) is not 0, in cells; None if one is at an edge."""
    reach = []
    for axis, (size, at) in enumerate(zip(cells, middle, strict=True), 1):
        far = [0]
        for slope in slopes:
            others = tuple(each for each in range(slope.ndim) if each != axis)
            places = np.flatnonzero((slope != 0).any(axis=others)) * size // slope.shape[axis]
            far += [abs(int(each) - at) for each in places]
            if places.size and size > 1 and (places[0] == 0 or places[-1] == size - 1):
                return None
        reach.append(max(far))
    return tuple(reach)
