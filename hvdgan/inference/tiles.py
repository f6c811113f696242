"""Computes whole fields by overlapping tiles, whose margins are as wide as the networks see; the tiles fit exactly."""

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.errors import UserError
from hvdgan.inference.any_size import AnySizeNets, sized
from hvdgan.inference.places import STRIDE, PlaceRandom
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
    """A part of a field that is computed alone.

    Args:
        first: where its window begins, in cells; below 0 it begins at the other end of a periodic axis.
        window: size of the window, in cells.
        cells: size of the field.
        inside: pixels of the window that are as in the whole field.
        region: the same pixels in the field.
    """

    first: Shape
    window: Shape
    cells: Shape
    inside: tuple[slice, ...]
    region: tuple[slice, ...]


class WholeFields:
    """The samples of a recipe for fields of any size, of which any part can be computed alone.

    A cell is a place of the coarsest of a field's parts.
    """

    def __init__(self, recipe: Recipe, nets: Nets, *, seed: int, truncation: float = 1.0) -> None:
        tf.config.experimental.enable_tensor_float_32_execution(False)  # whose rounding would show where tiles meet
        self._recipe, self._nets, self._seed, self._truncation = recipe, AnySizeNets(nets), seed, truncation
        self._functions: dict[Shape, Callable[..., tf.Tensor]] = {}
        space, fields = recipe.data.shape[:-1], _shapes(recipe.data)
        self._fields = {name: each[:-1] for name, each in fields.items() if is_field(each, recipe.data.shape)}
        sides = zip(space, *self._fields.values(), strict=True)
        self.pixels = tuple(math.lcm(*(side // each for each in others)) for side, *others in sides)
        """pixels of a sample in a cell along each axis"""
        self._cells = tuple(side // many for side, many in zip(space, self.pixels, strict=True))
        self.reach, self.periodic = self._measured_reach()
        """how far a place depends on others along each axis, in cells, and whether its two ends are neighbours"""
        self.step = self._measured_step()
        """stride of the networks in cells, of which windows begin at multiples"""

    def __call__(self, number: int, tile: Tile, parts: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute a tile of the sample with this number, (*space, C) as networks see it.

        `parts` are those of the whole field, (1, ...) each, and what describes it.
        """
        window = dict(parts)
        for name in parts.keys() & self._fields.keys():
            for axis, (n, all_) in enumerate(zip(self._fields[name], self._cells, strict=True)):
                begin, end = ((tile.first[axis] + size) * n // all_ for size in (0, tile.window[axis]))
                window[name] = _part(window[name], axis + 1, begin, end)
        if tile.window not in self._functions:
            self._functions[tile.window] = tf.function(self._computed(tile.window), autograph=False)
        given = {name: tf.constant(each) for name, each in window.items()}
        place = tf.constant([tile.first, tile.cells], tf.int64)
        made = self._functions[tile.window](tf.constant([number], tf.int64), place, given)
        return np.asarray(made[0])[tile.inside]

    def fitting(self, space: Shape) -> Shape:
        """The least height and width, from these on, that the networks take."""
        return tuple(_rounded(side, many * self.step) for side, many in zip(space, self.pixels, strict=True))

    def tiles(self, space: Shape, pixels: int) -> list[Tile]:
        """The tiles of a field of this height and width, each of about as many pixels, with windows of one size.

        No window leaves the field, so that padding is at the edges of the field itself, except where the field is
        periodic: there the window continues at the other end.
        """
        axes = []
        for side, many, far, is_periodic in zip(space, self.pixels, self.reach, self.periodic, strict=True):
            cells, halo = side // many, _rounded(far + self.step, self.step)
            if side % (many * self.step):
                raise UserError(
                    f"--whole: fields of {' x '.join(map(str, space))}; the networks take sides that are multiples of "
                    f"{many * self.step}: cut the fields, or pad them"
                )
            inner = max(pixels // many // self.step, 1) * self.step
            window = min(inner + 2 * halo, cells)
            inner = cells if window == cells else inner
            ends = ((begin, min(begin + inner, cells)) for begin in range(0, cells, inner))
            low, high = (-halo, cells) if is_periodic and window < cells else (0, cells - window)
            axes.append([(min(max(begin - halo, low), high), window, cells, begin, end) for begin, end in ends])
        return [self._tile(each) for each in itertools.product(*axes)]

    def _tile(self, axes: Iterable[tuple[int, int, int, int, int]]) -> Tile:
        """A tile, by where its window begins, its size, that of the field, and its own ends, along each axis."""
        first, window, cells, begin, end = zip(*axes, strict=True)
        ends = list(zip(begin, end, first, self.pixels, strict=True))
        inside = (slice((begin - first) * many, (end - first) * many) for begin, end, first, many in ends)
        return Tile(first, window, cells, tuple(inside), tuple(slice(begin * n, end * n) for begin, end, _, n in ends))

    def _sized(self, cells: Sequence[int]) -> DataSpec:
        return sized(self._recipe.data, [each * many for each, many in zip(cells, self.pixels, strict=True)])

    def _computed(self, cells: Shape) -> Callable[..., tf.Tensor]:
        """A function that computes samples (1, *space, C) of a window of this size."""
        recipe = copy.copy(self._recipe)
        recipe.data = self._sized(cells)

        def compute(number: tf.Tensor, place: tf.Tensor, parts: dict[str, tf.Tensor], **watch: Any) -> tf.Tensor:
            blank = {} if "images" in parts else {"images": tf.zeros((1, *recipe.data.shape))}
            random = PlaceRandom(self._seed, number, first=place[0], size=cells, whole=place[1], **watch)
            batch = prepare(recipe, {**blank, **parts}, random)
            batch.truncation = self._truncation
            return generated(recipe, self._nets, scoped(batch, "sample"))["images"]

        return compute

    def _trial(self, cells: Sequence[int]) -> dict[str, np.ndarray]:
        """Parts of a field of noise, without those that are no fields, which are 0."""
        spec, draw = self._sized(cells), np.random.default_rng(0).normal
        shapes = {**_shapes(spec), **({"conditions": (len(spec.conditions),)} if spec.conditions else {})}
        parts = {name: draw(size=(1, *each)) * (name in self._fields) for name, each in shapes.items()}
        labels = {"labels": np.zeros(1, np.int32)} if spec.num_classes else {}
        return {**{name: each.astype(np.float32) for name, each in parts.items()}, **labels}

    def _measured_reach(self) -> tuple[Shape, tuple[bool, ...]]:
        cells = self._cells
        while True:
            seen = [*zip(cells, self._seen_from(cells, [size // 2 for size in cells]), strict=True)]
            if not any(size > 1 and (places[0] == 0 or places[-1] == size - 1) for size, places in seen):
                break
            self._nets.refuse_whole_fields(by_slope=True)
            cells = tuple(2 * each for each in cells)
            if math.prod(side := self._sized(cells).shape[:-1]) > _MOST:
                named, size = " and ".join(self._nets.called), " x ".join(map(str, side))
                raise UserError(f"--whole: network {named}: a place depends on others in all of {size}, or of more")
        first = self._seen_from(cells, [0] * len(cells))
        is_periodic = (bool(places[-1] > size // 2) for size, places in zip(cells, first, strict=True))
        return tuple(int(np.abs(places - size // 2).max()) for size, places in seen), tuple(is_periodic)

    def _seen_from(self, cells: Shape, at: Sequence[int]) -> list[np.ndarray]:
        """The places along each axis on which the place `at` depends, by its gradient, in order; it is one of them."""
        parts = {name: tf.constant(each) for name, each in self._trial(cells).items()}
        watched, number = [parts[name] for name in self._fields], tf.constant([0], tf.int64)
        place = tf.constant([[0] * len(cells), cells], tf.int64)
        with tf.GradientTape() as tape:

            def watch(drawn: tf.Tensor) -> None:
                tape.watch(drawn)
                watched.append(drawn)

            tape.watch(watched)
            images = self._computed(cells)(number, place, parts, watch=watch)
            block = images[(0, *(slice(first * n, (first + 1) * n) for first, n in zip(at, self.pixels, strict=True)))]
            loss = tf.reduce_sum(block * np.random.default_rng(1).normal(size=block.shape).astype(np.float32))
        slopes = [np.asarray(each) != 0 for each in tape.gradient(loss, watched) if each is not None]
        seen = []
        for axis, (size, first) in enumerate(zip(cells, at, strict=True), 1):
            others = tuple(each for each in range(len(cells) + 2) if each != axis)
            found = [np.flatnonzero(each.any(axis=others)) * size // each.shape[axis] for each in slopes]
            seen.append(np.unique(np.concatenate([*found, [first]])))
        return seen

    def _measured_step(self) -> int:
        """Find the least step of windows that are equal to parts of a larger field.

        Powers of two are tried first, then the divisors of the fields in training.
        """
        most = max(STRIDE // max(min(self.pixels), len(self.pixels) - 1), 1)  # fewer cells of volumes
        common, apart, tried = math.gcd(*(size for size in self._cells if size > 1)), math.nan, set[int]()
        failed: UserError | None = None
        for base in (2 ** (most.bit_length() - 1), *range(most, 1, -1)):
            steps = [step for step in range(1, base + 1) if base % step == 0]
            if base in tried or (tried and common % base):
                continue
            try:
                for step, apart in self._differences(base, [each for each in steps if each not in tried]):
                    if apart <= _TOLERANCE:
                        return step
            except UserError as error:  # no size that the networks take
                failed = error
            tried.update(steps)
        raise failed or UserError(
            f"--whole: a part of a field that is computed alone differs from the whole by {apart:.3g}, since draw(), "
            f"generate() or network {', '.join(self._nets.called)} depends on the size of the field or on the place "
            "in it; give fields of the size in training without --whole"
        )

    def _differences(self, base: int, steps: Sequence[int]) -> Iterator[tuple[int, float]]:
        """How far windows that begin at these steps are from a whole field, whose size is a multiple of `base`."""
        cells = [_rounded(2 * far + 4 * base, base) for far in self.reach]
        parts = self._trial(cells)
        whole = self(0, self._tile((0, each, each, 0, each) for each in cells), parts)
        for step in steps:
            ends = zip(cells, self.reach, strict=True)
            tile = self._tile((step, all_ - base, all_, 2 * step + far, all_ - base - far) for all_, far in ends)
            apart = np.abs(self(0, tile, parts) - whole[tile.region]).max(initial=0.0)
            yield step, float(apart / max(1.0, np.abs(whole).max()))


def _part(numbers: np.ndarray, axis: int, begin: int, end: int) -> np.ndarray:
    """The part between two places along an axis, which continues at its other end."""
    if begin >= 0 and end <= numbers.shape[axis]:
        return numbers[(*[slice(None)] * axis, slice(begin, end))]
    return numbers.take(range(begin, end), axis, mode="wrap")


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


def _shapes(spec: DataSpec) -> dict[str, Shape]:
    """The shapes of what networks get of a sample."""
    others = {"inputs": spec.input_shape, "constants": spec.constants_shape}
    given = {name: each for name, each in others.items() if each is not None}
    return {"images": spec.shape, **given, **named_arrays(spec.array_shapes)}
