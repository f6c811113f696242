"""The command python -m hvdgan.sample: draws samples with the networks of a run."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from hvdgan.checkpoints.files import refuse_missing
from hvdgan.cli.app import at_once, command

at_once(__name__, refuse_missing)

import numpy as np
import tensorflow as tf
from cyclopts import Parameter

from hvdgan.cli.errors import UserError
from hvdgan.cli.types import Count, CountOrNever, Fraction, Seed
from hvdgan.inference import sample_files
from hvdgan.inference.inputs import blank_inputs, data_inputs, given_conditions
from hvdgan.inference.standing import set_standing_statistics
from hvdgan.inference.trained import TrainedNetworks, Weights, load_trained
from hvdgan.recipe import mistakes
from hvdgan.recipe.drawing import Drawing, Input, SampleRandom, are_classes, are_latents, draw_batches
from hvdgan.recipe.recipe import Recipe
from hvdgan.recipe.results import drawn_by
from hvdgan.recipe.showing import restored, shown

_HELP = """Draw samples with a trained generator, in one process and without a launcher.

RUN_DIR is a run folder, whose newest checkpoint is used, or a checkpoint folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Samples to draw; the fields are the flags."""

    out: Path
    """.png to write, a grid of all samples; .npy, .npz or .h5 for their numbers in the units of the data"""
    samples: Count = 64
    """number of samples"""
    members: Count = 1
    """samples in a row from each input of the data, each with its own noise: an ensemble; --samples counts them all"""
    weights: Weights = "averaged"
    """averaged: moving averages of the weights, if the run has any; trained: the weights themselves"""
    standing_statistics: Count | None = None
    """number of generated batches of --batch-size whose BatchNorm statistics replace the moving ones, such as 100"""
    separate: bool = False
    """--out is a folder: write one picture for each sample, 000000.png and so on; for arrays 000000.npy"""
    seed: Seed = 0
    """seed of the samples; sample i of a seed is the same for every --samples"""
    class_: Annotated[CountOrNever | None, Parameter(name="--class")] = None
    """class to draw, from 0, for recipes with classes; default: those that the recipe draws"""
    condition: str | None = None
    """conditions of all samples in the units of the data, as NAME=NUMBER,NAME=NUMBER"""
    conditions: Path | None = None
    """CSV with a column for each condition, or an .npy array (N, k); the samples take its rows in turn"""
    truncation: Fraction | None = None
    """factor that pulls styles towards their mean, from 0 (the mean) to 1 (unchanged), for recipes that truncate"""
    interpolate: tuple[Seed, Seed] | None = None
    """two seeds A B: --samples samples along a spherical interpolation from the first latents of A to those of B"""
    batch_size: Count = 16
    """samples computed at a time; fewer need less memory"""
    data: str | None = None
    """data to start from, if the recipe needs some; default: those that the run was trained on"""
    axes: str | None = None
    """axes of a sample in the arrays of --data, as for hvdgan.train; default: as the run's settings say"""
    overwrite: bool = False
    """write over existing files"""


@command(name="sample", help_text=_HELP)
def main(run_dir: Path, /, *, request: Annotated[Request, Parameter(name="*")]) -> None:
    sample_files.check(request.out, separate=request.separate, overwrite=request.overwrite)
    trained = load_trained(run_dir)
    recipe, standing = trained.recipe, ""
    truncation = 1.0 if request.truncation is None else request.truncation
    with mistakes.of(recipe):
        _check(recipe, request)
        if batches := request.standing_statistics:
            names = set_standing_statistics(
                trained,
                request.weights,
                request.data,
                batches=batches,
                batch_size=request.batch_size,
                seed=request.seed,
                truncation=truncation,
                axes=request.axes,
            )
            standing = f"; BatchNorm statistics of {', '.join(names)}: {batches:,} batches of {request.batch_size}"
        drawing = Drawing(
            recipe,
            trained.nets(request.weights),
            seed=request.seed,
            class_=request.class_,
            truncation=truncation,
            interpolate=request.interpolate,
            num=request.samples,
        )
        drawn = draw_batches(drawing, _inputs(trained, request), request.samples, request.batch_size)
        _write(recipe, request, drawn)
    print(f"{request.out}: {request.samples:,} samples from {trained.checkpoint}, step {trained.step:,}{standing}")


def _inputs(trained: TrainedNetworks, request: Request) -> Iterator[Input]:
    """What each sample starts from; an interpolation starts from one sample of the data."""
    recipe, spec = trained.recipe, trained.recipe.data
    conditions = given_conditions(request.condition, request.conditions, spec)
    if recipe.shows_data:
        inputs = data_inputs(trained, request.data, request.seed, request.axes)
        if conditions is not None:
            rows = itertools.cycle(conditions)
            inputs = ({**one, "conditions": next(rows)} for one in inputs)
        inputs = itertools.chain.from_iterable(itertools.repeat(one, request.members) for one in inputs)
    elif spec.conditions and conditions is None:
        pairs = ",".join(f"{name}=NUMBER" for name in spec.conditions)
        raise UserError(f"the run has conditions, which samples need: give --condition {pairs} or --conditions FILE")
    else:
        inputs = blank_inputs(spec, conditions)
    return inputs if request.interpolate is None else itertools.repeat(next(inputs))


def _write(recipe: Recipe, request: Request, batches: Iterator[tuple[np.ndarray, list[Input]]]) -> None:
    spec = recipe.data
    if not request.separate:
        drawn, started = zip(*batches, strict=True)
        numbers, inputs = restored(shown(np.concatenate(drawn), spec), spec), list(itertools.chain(*started))
        sample_files.write(request.out, numbers, spec, inputs, of_data=recipe.shows_data)
        return
    suffix, number = ".png" if spec.is_pictures else ".npy", 0
    for samples, _ in batches:
        for sample in restored(shown(samples, spec), spec):
            path = request.out / f"{number:06}{suffix}"
            sample_files.write(path, sample[None] if spec.is_pictures else sample, spec, [])
            number += 1


def _check(recipe: Recipe, request: Request) -> None:
    """Refuse flags that the recipe does not support, with what was expected and what to do."""
    drawn = drawn_by(recipe, SampleRandom(0, tf.constant([0], tf.int64)))
    name, classes, chosen = type(recipe).__name__, recipe.data.num_classes, request.class_
    members, data = f"--members {request.members}", f"--data {request.data}"
    needs_data = recipe.shows_data or (request.standing_statistics is not None and bool(recipe.data.conditions))
    for is_wrong, words in (
        (
            chosen is not None and not are_classes(drawn.get("classes")),
            f"--class {chosen}: the draw() of {name} returns no integers (B,) under the name classes, such as "
            'random.integers("classes", (), self.data.num_classes)',
        ),
        (
            chosen is not None and chosen >= classes,
            f"--class {chosen}: the data of this run have {classes or 'no'} classes; expected a smaller number, or "
            "none",
        ),
        (
            request.truncation is not None and not recipe.truncates,
            "--truncation: the recipe of this run cannot truncate; leave the flag out",
        ),
        (
            request.data is not None and not needs_data,
            f"{data}: the recipe of this run starts from no images; leave the flag out",
        ),
        (request.axes is not None and request.data is None, "--axes: is for arrays that --data names; leave it out"),
        (
            request.members > 1 and not recipe.shows_data,
            f"{members}: the recipe of this run starts from no inputs; leave the flag out: --samples gives their "
            "number",
        ),
    ):
        if is_wrong:
            raise UserError(words)
    if request.interpolate is None:
        return
    if not are_latents(drawn.get("latents")):
        raise UserError(
            f"--interpolate: the draw() of {name} returns no float32 (B, ...) under the name latents, such as "
            'random.normal("latents", (64,))'
        )
    if request.seed or request.members > 1 or request.samples < 2:
        raise UserError(
            "--interpolate: has two seeds and one input; leave out --seed and --members, with --samples 2 or more"
        )


if __name__ == "__main__":
    sys.exit(main())
