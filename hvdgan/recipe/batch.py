"""What a loss, sample() and evaluate() compute with, and how it is made of the data."""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from hvdgan.recipe.data_spec import ArraysByName, DataSpec
from hvdgan.recipe.draws import Random
from hvdgan.recipe.recipe_errors import Mistake
from hvdgan.recipe.scheduled import ScheduledValues
from hvdgan.values.sample_values import Layout, arrays_of


@dataclasses.dataclass(frozen=True)
class State:
    """A variable that lasts from step to step, declared by a recipe's state(); checkpoints hold it.

    Args:
        initial: first value, a number or an array of any shape; floats become float32, whole numbers int64.
        per_sample: False: one value, the same on all ranks, which control() sets, or losses that compute it by
            batch.mean, batch.sum or batch.gather. True: a value of this shape for each place of the global batch, which
            losses set; a rank holds those of its slice, and a run that is resumed on other ranks takes other slices of
            the same values.
    """

    initial: Any
    per_sample: bool = False


class StateValues:
    """The values of a recipe's state as attributes: `batch.state.pool` (B, ...) if it is per sample."""

    def __init__(self, values: Mapping[str, tf.Tensor]) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> tf.Tensor:
        known = ", ".join(sorted(self.__dict__)) or "nothing"
        raise AttributeError(f"there is no state {name}; state() declares {known}")


class Batch:
    """Input of a loss, sample() and evaluate(): samples, labels, and the tensors that draw() returned, as attributes.

    B is the number of samples that this call sees: a rank's slice of the global batch, a micro-batch of it with
    --accumulate, or the images of a sample grid or an evaluation.

    Attributes:
        images: samples of the data as networks see them, (B, *self.data.shape) float32: pictures (B, H, W, C) in
            [-1, 1], arrays (B, H, W, C), (B, D, H, W, C) or (B, C) after the map of --values.
        labels: classes of the images, (B,) int32 from 0 to num_classes - 1; None if the data has no classes. In
            hvdgan.sample these are the drawn classes, or all classes in turn.
        inputs: input of each sample, (B, *self.data.input_shape) float32, if the recipe is `paired`; else None.
        arrays: further arrays of each sample by name (--arrays), (B, *self.data.array_shapes[name]) float32 after the
            map of --values-of, as in batch.arrays["map"]; empty if there are none.
        conditions: numbers that describe each sample (--conditions), (B, k) float32 after the map of
            --condition-values; None if there are none. Their names are self.data.conditions.
        constants: fields that all samples share (--constants), (1, H, W, K) float32, or (B, H, W, K) with --crop; None
            if there are none.
        index: number of each sample in the data, (B,) int64.
        random: Random whose numbers belong to this update alone. In a loss, batch.random.step is the global step, a
            scalar int64 tensor, from which a weight can be computed that changes during the run.
        augment: function of images (B, H, W, C) and a key; returns the images as the discriminator should see them,
            with the augmentations of --diff-augment and --ada, drawn anew for each key. Without these flags it returns
            them unchanged.
        mean: function of a tensor (k B, ...) whose rows belong to the samples, or (1, ...), a mean over them; returns
            its mean over the whole global batch, (...), on every rank. Gradients flow to the samples of all ranks. For
            losses alone, as the next two.
        sum: function of a tensor (k, ...); returns the sum of all its rows on all ranks, (...), float32, or float64 of
            float64. Gradients flow.
        gather: function of a tensor (B, ...); returns the tensors of all samples of the global batch, (N, ...), in
            their order, on every rank. Gradients flow.
        domains: samples of each domain by its name, a Domain each, if the recipe has `domains`; the attributes above
            are those of the first one.
        schedule: function of a name; returns the value at this step of the stage's schedule of this name, a scalar
            float32 tensor; if no stage names it, the option of this name. In sample() and evaluate() the step is the
            last one of the run.
        truncation: factor that pulls styles towards their mean in sample(), from 0 (the mean) to 1 (unchanged).
        state: values of what the recipe's state() declares, as attributes; in sample() and evaluate() without those per
            sample.

    Raises:
        AttributeError: the batch has no such attribute, or no such array; the message names those that it has.
        UserError: mean, sum or gather is called in sample() or evaluate(), in a branch, a loop or a function of
            TensorFlow, with --accumulate, in an update with reduce=False, or with a tensor of another shape.
    """

    def __init__(
        self,
        images: tf.Tensor,
        labels: tf.Tensor | None,
        random: Random,
        drawn: dict[str, tf.Tensor],
        *,
        inputs: tf.Tensor | None = None,
        conditions: tf.Tensor | None = None,
        constants: tf.Tensor | None = None,
        index: tf.Tensor | None = None,
        domains: "dict[str, Domain] | None" = None,
        arrays: Mapping[str, tf.Tensor] | None = None,
    ) -> None:
        self.images, self.labels, self.random = images, labels, random
        self.inputs, self.conditions, self.constants, self.index = inputs, conditions, constants, index
        self.augment: Callable[[tf.Tensor, str], tf.Tensor] = lambda images, key: images
        self.schedule: Callable[[str], tf.Tensor] = ScheduledValues().read
        self.mean, self.sum, self.gather = (_of_losses(name) for name in ("mean", "sum", "gather"))
        self.domains, self.arrays = domains or {}, ArraysByName(arrays or {})
        self.truncation = 1.0
        self.state = StateValues({})
        if taken := vars(self).keys() & drawn.keys():
            raise Mistake(f"draw() returns {', '.join(sorted(taken))}, which every batch has; name it otherwise")
        self.__dict__.update(drawn)

    def __getattr__(self, name: str) -> tf.Tensor:
        raise AttributeError(
            f"the batch has no {name}; it has {', '.join(sorted(self.__dict__))}; draw() can add to it"
        )


def _of_losses(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Make what a batch that is not a loss's has under this name."""

    def refuse(x: tf.Tensor) -> tf.Tensor:
        what = f"batch.{name} is over the global batch of a step, and sample() and evaluate() see none"
        raise Mistake(f"{what}; call it in a loss, or return a number of each sample")

    return refuse


def scoped(batch: Batch, scope: str) -> Batch:
    """The same batch for one update, for sample() or for evaluate(), with random numbers of its own."""
    other = copy.copy(batch)
    other.random = batch.random.scoped(scope)
    return other


def shrunk(images: tf.Tensor, size: int | Sequence[int]) -> tf.Tensor:
    """Images (B, ..., C) as means over blocks, with this many pixels along each axis of space, or along all."""
    sizes = [size] * (images.shape.rank - 2) if isinstance(size, int) else size
    for axis, pixels in enumerate(sizes, 1):
        before, after = images.shape[:axis], images.shape[axis + 1 :]
        images = tf.reduce_mean(tf.reshape(images, (*before, pixels, -1, *after)), axis + 1)
    return images


class Domain(NamedTuple):
    """Samples of one domain of a recipe that has several: `batch.domains["B"]`.

    Args:
        images: samples as networks see them, (B, *self.data.domains[name].shape) float32.
        labels: classes of the samples, (B,) int32; None if the domain has no classes.
        conditions: numbers that describe each sample, (B, k) float32; None if there are none.
    """

    images: tf.Tensor
    labels: tf.Tensor | None = None
    conditions: tf.Tensor | None = None


class Parts(NamedTuple):
    """The parts of B samples, as networks see them; images and inputs are (B, ..., C), constants (1 or B, ..., K)."""

    images: tf.Tensor
    inputs: tf.Tensor | None = None
    constants: tf.Tensor | None = None
    arrays: Mapping[str, tf.Tensor] = ArraysByName()

    @property
    def fields(self) -> list[tf.Tensor]:
        """Those that have the images' axes in space."""
        rank, parts = self.images.shape.rank, (*self[:3], *self.arrays.values())
        return [each for each in parts if each is not None and each.shape.rank == rank]

    def changed(self, change: Callable[[tf.Tensor], tf.Tensor]) -> "Parts":
        """The parts with a change of these."""
        new = {id(each): change(each) for each in self.fields}
        images, inputs, constants = (new.get(id(each), each) for each in self[:3])
        return Parts(images, inputs, constants, {name: new.get(id(each), each) for name, each in self.arrays.items()})


def unpack(data: Mapping[str, Any], spec: DataSpec, random: Random | None = None) -> Parts:
    """The parts of samples, as Samples.fetch_batch() reads them, for networks: 8-bit pictures in [-1, 1], and cropped.

    Other numbers have been mapped before. `random` draws the places of --crop, one per sample; without it they are the
    centre.
    """
    arrays = {name: tf.cast(each, tf.float32) for name, each in arrays_of(data).items()}
    images, inputs = (data.get(name) for name in ("images", "inputs"))
    are_pixels = tf.as_dtype(data["images"].dtype) == tf.uint8
    fields = spec.constants
    if "constants" in data:  # of a part of a field
        fields = data["constants"][0]
    elif fields is None and spec.constants_shape is not None:
        # Without the data, the mask of missing numbers is known, and no other field.
        fields = spec.missing.field if spec.missing and spec.constants_shape[-1] == 1 else None
        if fields is None:
            raise ValueError("the constants of these data have not been read")
    constants = None if fields is None else tf.cast(fields[None], tf.float32)
    seen = [None if each is None else tf.cast(each, tf.float32) for each in (images, inputs)]
    parts = Parts(seen[0], seen[1], constants, arrays)
    layout = spec.record_layout
    if layout.crop is not None:
        parts = _cropped(parts, layout, random)
    if not are_pixels:
        return parts
    images, inputs = (None if each is None else each / 127.5 - 1.0 for each in parts[:2])
    return Parts(images, inputs, *parts[2:])


def _cropped(parts: Parts, layout: Layout, random: Random | None) -> Parts:
    assert layout.crop is not None
    count = parts.images.shape[0]
    if parts.constants is not None:
        parts = parts._replace(constants=tf.repeat(parts.constants, count, axis=0))
    for axis, (length, size) in enumerate(zip(layout.crop, layout.shape, strict=False), 1):
        # Places are counted in steps of whole pixels of each field, so that all show the same region.
        step = math.lcm(*(size // each.shape[axis] for each in parts.fields))
        possible = (size - length) // step + 1
        if random is None:
            first = tf.fill((count,), tf.constant((possible - 1) // 2, tf.int64))
        else:
            first = tf.cast(random.integers(f"crop/{axis}", (), possible), tf.int64)  # GPUs add no int32
        parts = parts.changed(functools.partial(_cut, axis=axis, first=first, step=step, length=length, size=size))
    return parts


def _cut(numbers: tf.Tensor, axis: int, first: tf.Tensor, step: int, length: int, size: int) -> tf.Tensor:
    """The part of each sample that begins at its own step along an axis, counted as if the axis had this size."""
    factor = size // numbers.shape[axis]
    places = first[:, None] * (step // factor) + tf.range(length // factor, dtype=tf.int64)[None]
    return tf.gather(numbers, places, axis=axis, batch_dims=1)
