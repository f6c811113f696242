"""The command: python -m hvdgan.sample, which draws images with what a run has learnt."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import itertools
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

# Before TensorFlow is loaded, as in hvdgan.train.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from cyclopts import Parameter

from hvdgan.cli import outputs
from hvdgan.cli.app import command
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.types import Count, CountOrNever, Fraction, Seed
from hvdgan.data import BadImage, Source, open_source
from hvdgan.data.order import sample_indices
from hvdgan.recipe import mistakes
from hvdgan.recipe.draws import SampleRandom
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.recipe import Batch, Recipe, split_pairs
from hvdgan.recipe.returned import drawn_by, sampled
from hvdgan.training.monitoring.samples import save_grid, to_uint8
from hvdgan.training.trained import Trained, Weights, load_trained

_HELP = """Draw images with a trained generator, in one process and without a launcher.

RUN_DIR is a run folder, whose newest checkpoint is used, or the folder of a checkpoint."""

_Shown = tuple[np.ndarray, "int | None"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to draw; the fields are the flags."""

    out: Path
    """the picture to write, a grid of all samples as .png; with --separate a folder"""
    num: Count = 64
    """how many samples"""
    weights: Weights = "averaged"
    """the averages over time where the run has some, or the weights themselves"""
    separate: bool = False
    """one picture for each sample, 000000.png and so on"""
    seed: Seed = 0
    """chooses the samples; sample i of a seed is the same whatever --num is"""
    class_: Annotated[CountOrNever | None, Parameter(name="--class")] = None
    """draw this class alone, from 0; for recipes with classes"""
    truncation: Fraction | None = None
    """how far styles may be from their mean: 0 not at all, 1 without limit; for recipes that can"""
    interpolate: tuple[Seed, Seed] | None = None
    """two seeds: from the first sample of the one to that of the other, in --num images along the sphere of latents"""
    batch_size: Count = 16
    """samples computed at a time; fewer need less memory"""
    data: str | None = None
    """images to start from, for recipes that need some; default: those that the run was trained on"""
    overwrite: bool = False
    """write over what is there"""


@command(name="sample", help_text=_HELP)
def main(run_dir: Path, /, *, request: Annotated[Request, Parameter(name="*")]) -> None:
    (outputs.check_folder if request.separate else outputs.check_file)(request.out, overwrite=request.overwrite)
    trained = load_trained(run_dir)
    with mistakes.of(trained.recipe):
        batches = _batches(
            request, _Drawing(trained.recipe, trained.nets(request.weights), request), _shown(trained, request)
        )
        if request.separate:
            for number, image in enumerate(image for images in batches for image in images):
                outputs.write(request.out / f"{number:06}.png", partial(outputs.save_png, pixels=image))
        else:
            grid = np.concatenate(list(batches))
            outputs.write(request.out, partial(save_grid, images=grid))
    print(f"{request.out}: {request.num:,} samples from {trained.checkpoint}, step {trained.step:,}")


class _Drawing:
    """Samples by their numbers; what cannot be asked of the recipe is refused at once.

    Args:
        recipe: draws and shows the samples.
        nets: its networks.
        request: what to draw.
    """

    def __init__(self, recipe: Recipe, nets: Nets, request: Request) -> None:
        self._recipe, self._nets, self._request = recipe, nets, request
        drawn = drawn_by(recipe, SampleRandom(0, tf.constant([0], tf.int64)))
        classes, chosen = recipe.data.num_classes, request.class_
        if chosen is not None and not _are_classes(drawn.get("classes")):
            raise UserError(
                f"--class {chosen}: {_instead(recipe, 'classes', drawn, lacking='has no classes')}; the flag needs a "
                "draw() that returns integers (B,) under the name classes, such as "
                'random.integers("classes", (), self.data.num_classes)'
            )
        if chosen is not None and not classes:
            raise UserError(f"--class {chosen}: the data of this run has no classes; leave the flag out")
        if chosen is not None and chosen >= classes:
            raise UserError(f"--class {chosen}: the run knows {classes} classes; expected 0 to {classes - 1}")
        if request.truncation is not None and not recipe.truncates:
            raise UserError("--truncation: the recipe of this run cannot truncate; leave the flag out")
        if request.interpolate is None:
            return
        if not _are_latents(drawn.get("latents")):
            raise UserError(
                f"--interpolate: {_instead(recipe, 'latents', drawn, lacking='draws no latents')}; the flag needs a "
                'draw() that returns float32 (B, ...) under the name latents, such as random.normal("latents", (64,))'
            )
        if request.seed:
            raise UserError("--interpolate: names its two seeds itself; leave out --seed")
        if request.num < 2:
            raise UserError(f"--num {request.num}: a path has two ends; expected 2 or more with --interpolate")

    def __call__(self, numbers: tf.Tensor, images: tf.Tensor, labels: tf.Tensor | None) -> tf.Tensor:
        """Images (N, H, W, C) in [-1, 1].

        Args:
            numbers: (B,) int64, of the samples.
            images: (B, H, W, C) uint8 to start from, for recipes that need some; (B, H, W, 2C) where they are paired.
            labels: (B,) int32 of these images, or None.
        """
        request = self._request
        if request.interpolate is None:
            random = SampleRandom(request.seed, numbers)
        else:
            random = SampleRandom(request.interpolate[0], tf.zeros_like(numbers))
        drawn = drawn_by(self._recipe, random.scoped("draw"))
        if request.interpolate is not None:
            other = SampleRandom(request.interpolate[1], tf.zeros_like(numbers))
            places = tf.minimum(tf.cast(numbers, tf.float32) / (request.num - 1), 1.0)
            drawn["latents"] = slerp(drawn["latents"], self._recipe.draw(other.scoped("draw"))["latents"], places)
        if request.class_ is not None:
            drawn["classes"] = tf.fill(drawn["classes"].shape, tf.cast(request.class_, drawn["classes"].dtype))
        inputs, images = split_pairs(images, paired=self._recipe.paired)
        batch = Batch(
            images,
            drawn["classes"] if _are_classes(drawn.get("classes")) else labels,
            random.scoped("sample"),
            drawn,
            inputs=inputs,
            truncation=1.0 if request.truncation is None else request.truncation,
        )
        return sampled(self._recipe, self._nets, batch)


def _are_classes(drawn: Any) -> bool:
    """Whether a draw by the name of classes is one: integers (B,)."""
    return tf.is_tensor(drawn) and drawn.dtype.is_integer and drawn.shape.rank == 1


def _are_latents(drawn: Any) -> bool:
    """Whether a draw by the name of latents can be interpolated."""
    return tf.is_tensor(drawn) and drawn.dtype == tf.float32 and drawn.shape.rank >= 1


def _instead(recipe: Recipe, name: str, drawn: dict[str, Any], *, lacking: str) -> str:
    """What a recipe draws under a name, for messages; `lacking` if it draws nothing."""
    if name not in drawn:
        return f"recipe {type(recipe).__name__} {lacking}"
    value = drawn[name]
    if not tf.is_tensor(value):
        return f"recipe {type(recipe).__name__} draws {name} {type(value).__name__}"
    sizes = ", ".join(["B", *map(str, value.shape[1:])]) + ("," if value.shape.rank == 1 else "")
    return f"recipe {type(recipe).__name__} draws {name} {value.dtype.name} ({sizes})"


def slerp(first: tf.Tensor, second: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Points between latents: along the arc between them, whose length grows evenly, and not through the middle.

    Args:
        first: (B, ...) float32.
        second: of the same shape.
        places: (B,) in [0, 1]; 0 is the first exactly, 1 the second.

    Reference: Shoemake 1985, section 3.3; White 2016, arXiv:1609.04468, section 2.1.
    """
    shape = first.shape
    first, second = (tf.reshape(latents, (shape[0], -1)) for latents in (first, second))
    cosine = tf.reduce_sum(tf.math.l2_normalize(first, -1) * tf.math.l2_normalize(second, -1), -1)
    angle = tf.acos(tf.clip_by_value(cosine, -1.0, 1.0))
    parallel = tf.sin(angle) < 1e-4  # one direction, or opposite ones: no arc is the right one
    whole = tf.where(parallel, 1.0, tf.sin(angle))
    from_first = tf.where(parallel, 1.0 - places, tf.sin((1.0 - places) * angle) / whole)
    from_second = tf.where(parallel, places, tf.sin(places * angle) / whole)
    return tf.reshape(from_first[:, None] * first + from_second[:, None] * second, shape)


def _batches(request: Request, drawing: _Drawing, shown: Iterator[_Shown]) -> Iterator[np.ndarray]:
    """The samples in order, (N, H, W, C) uint8, some at a time."""
    function = tf.function(drawing, autograph=False)
    waiting: list[_Shown] = []
    done = 0
    while done < request.num:
        # Always whole batches: the last samples must not depend on how many there are.
        waiting += itertools.islice(shown, request.batch_size - len(waiting))
        numbers = tf.range(done, done + request.batch_size, dtype=tf.int64)
        images = tf.constant(np.stack([image for image, _ in waiting]))
        labels = None if waiting[0][1] is None else tf.constant([label for _, label in waiting], tf.int32)
        samples = to_uint8(function(numbers, images, labels).numpy())
        yield samples[: request.num - done]
        # A recipe may show fewer than it is given; the others begin the next batch.
        done += len(samples)
        waiting = waiting[len(samples) :]


def _shown(trained: Trained, request: Request) -> Iterator[_Shown]:
    """An image and its label for each sample, without end; a blank one and every class in turn where none is needed."""
    recipe, config = trained.recipe, trained.config
    spec = recipe.data
    if recipe.shows_data:
        wanted = dataclasses.replace(
            config,
            data=request.data or config.data,
            image_size=spec.image_size,
            channels=1 if spec.channels == 1 else 3,
        )
        try:
            source = open_source(wanted, paired=recipe.paired)
        except UserError as error:
            hint = "" if request.data else "; if the images of the run have moved, name them or others with --data"
            raise UserError(f"{error}{hint}") from error
        images = _of_data(source, request.seed)
    else:
        if request.data is not None:
            raise UserError(f"--data {request.data}: the recipe of this run starts from no images; leave the flag out")
        blank = np.zeros((spec.image_size, spec.image_size, spec.channels), np.uint8)
        images = ((blank, number % spec.num_classes if spec.num_classes else None) for number in itertools.count())
    return images if request.interpolate is None else itertools.repeat(next(images))


def _of_data(source: Source, seed: int) -> Iterator[_Shown]:
    """The images in an order that the seed chooses, again and again; broken ones are passed over."""
    failed = 0
    for place in itertools.count():
        index = int(sample_indices(seed, place, 1, len(source))[0])
        try:
            image = source.fetch(index)
        except BadImage as error:
            failed += 1
            if failed >= len(source):
                raise RunError(f"--data {source.name}: none of the images can be read; the last: {error}") from error
            continue
        failed = 0
        yield image, None if source.labels is None else int(source.labels[index])


if __name__ == "__main__":
    sys.exit(main())
