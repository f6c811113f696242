"""The command python -m hvdgan.sample: draws samples with the networks of a run."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tensorflow as tf
from cyclopts import Parameter

from hvdgan.cli.app import command
from hvdgan.cli.errors import UserError
from hvdgan.cli.types import Count, CountOrNever, Fraction, Seed
from hvdgan.inference import sample_files
from hvdgan.inference.given_conditions import described, given
from hvdgan.inference.inputs import blank_inputs, data_inputs, each_repeated
from hvdgan.inference.standing import set_standing_statistics, standing_inputs
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
    num: Count = 64
    """number of samples"""
    members: Count = 1
    """samples in a row from each input of the data, each with noise of its own: an ensemble; --num counts them all"""
    weights: Weights = "averaged"
    """averaged: moving averages of the weights, if the run has any; trained: the weights themselves"""
    standing_statistics: Count | None = None
    """number of generated batches of --batch-size whose BatchNorm statistics replace the moving ones, such as 100"""
    separate: bool = False
    """--out is a folder: write one picture for each sample, 000000.png and so on; for arrays 000000.npy"""
    seed: Seed = 0
    """seed of the samples; sample i of a seed is the same for every --num"""
    class_: Annotated[CountOrNever | None, Parameter(name="--class")] = None
    """class to draw, from 0, for recipes with classes; default: those that the recipe draws"""
    condition: str | None = None
    """conditions of all samples in the units of the data, as NAME=NUMBER,NAME=NUMBER"""
    conditions: Path | None = None
    """CSV with a column for each condition, or an .npy array (N, k); the samples take its rows in turn"""
    truncation: Fraction | None = None
    """factor that pulls styles towards their mean, from 0 (the mean) to 1 (unchanged), for recipes that truncate"""
    interpolate: tuple[Seed, Seed] | None = None
    """two seeds A B: --num samples along a spherical interpolation from the first latents of A to those of B"""
    batch_size: Count = 16
    """samples computed at a time; fewer need less memory"""
    data: str | None = None
    """data to start from, if the recipe needs some; default: those that the run was trained on"""
    overwrite: bool = False
    """write over existing files"""


@command(name="sample", help_text=_HELP)
def main(run_dir: Path, /, *, request: Annotated[Request, Parameter(name="*")]) -> None:
    sample_files.check(request.out, separate=request.separate, overwrite=request.overwrite)
    trained = load_trained(run_dir)
    with mistakes.of(trained.recipe):
        _check(trained.recipe, request)
        standing = "" if request.standing_statistics is None else _stand(trained, request.standing_statistics, request)
        drawing = Drawing(
            trained.recipe,
            trained.nets(request.weights),
            seed=request.seed,
            class_=request.class_,
            truncation=1.0 if request.truncation is None else request.truncation,
            interpolate=request.interpolate,
            num=request.num,
        )
        batches = draw_batches(drawing, _inputs(trained, request), request.num, request.batch_size)
        _write(trained.recipe, request, batches)
    print(f"{request.out}: {request.num:,} samples from {trained.checkpoint}, step {trained.step:,}{standing}")


def _stand(trained: TrainedNetworks, batches: int, request: Request) -> str:
    """Set standing statistics, and describe them for the last line of the command."""
    names = set_standing_statistics(
        trained,
        request.weights,
        standing_inputs(trained, request.data, request.seed),
        batches=batches,
        batch_size=request.batch_size,
        seed=request.seed,
        truncation=1.0 if request.truncation is None else request.truncation,
    )
    return f"; BatchNorm statistics of {', '.join(names)}: {batches:,} batches of {request.batch_size}"


def _write(recipe: Recipe, request: Request, batches: Iterator[tuple[np.ndarray, list[Input]]]) -> None:
    spec = recipe.data
    if not request.separate:
        drawn, started = zip(*batches, strict=True)
        numbers, inputs = restored(shown(np.concatenate(drawn), spec), spec), list(itertools.chain(*started))
        sample_files.write(request.out, numbers, spec, inputs, of_data=recipe.shows_data)
        return
    suffix, number = ".png" if spec.is_pictures else ".npy", 0
    for samples, inputs in batches:
        for sample, one in zip(restored(shown(samples, spec), spec), inputs, strict=True):
            sample_files.write(
                request.out / f"{number:06}{suffix}", sample[None] if spec.is_pictures else sample, spec, [one]
            )
            number += 1


def _check(recipe: Recipe, request: Request) -> None:
    """Refuse flags that the recipe does not support.

    Raises:
        UserError: names the flag, what was expected and what to do.
    """
    drawn = drawn_by(recipe, SampleRandom(0, tf.constant([0], tf.int64)))
    if request.class_ is not None:
        _check_class(recipe, request.class_, drawn)
    if request.truncation is not None and not recipe.truncates:
        raise UserError("--truncation: the recipe of this run cannot truncate; leave the flag out")
    if request.interpolate is not None:
        _check_interpolation(recipe, request, drawn)
    needs_conditions = request.standing_statistics is not None and bool(recipe.data.conditions)
    if request.data is not None and not recipe.shows_data and not needs_conditions:
        raise UserError(f"--data {request.data}: the recipe of this run starts from no images; leave the flag out")
    if request.members > 1 and not recipe.shows_data:
        raise UserError(
            f"--members {request.members}: the recipe of this run starts from no inputs; leave the flag out: --num "
            "gives the number of samples"
        )


def _check_class(recipe: Recipe, chosen: int, drawn: dict[str, Any]) -> None:
    classes = recipe.data.num_classes
    if not are_classes(drawn.get("classes")):
        raise UserError(
            f"--class {chosen}: {_described(recipe, 'classes', drawn, missing='has no classes')}; the flag needs a "
            "draw() that returns integers (B,) under the name classes, such as "
            'random.integers("classes", (), self.data.num_classes)'
        )
    if not classes:
        raise UserError(f"--class {chosen}: the data of this run has no classes; leave the flag out")
    if chosen >= classes:
        raise UserError(f"--class {chosen}: the run has {classes} classes; expected 0 to {classes - 1}")


def _check_interpolation(recipe: Recipe, request: Request, drawn: dict[str, Any]) -> None:
    if not are_latents(drawn.get("latents")):
        raise UserError(
            f"--interpolate: {_described(recipe, 'latents', drawn, missing='draws no latents')}; the flag needs a "
            'draw() that returns float32 (B, ...) under the name latents, such as random.normal("latents", (64,))'
        )
    if request.seed:
        raise UserError("--interpolate: has two seeds of its own; leave out --seed")
    if request.members > 1:
        raise UserError(f"--members {request.members}: an interpolation starts from one input; leave the flag out")
    if request.num < 2:
        raise UserError(f"--num {request.num}: an interpolation has two ends; expected 2 or more with --interpolate")


def _described(recipe: Recipe, name: str, drawn: dict[str, Any], *, missing: str) -> str:
    """Describe for an error message what a recipe draws under a name; `missing` if it draws nothing."""
    if name not in drawn:
        return f"recipe {type(recipe).__name__} {missing}"
    value = drawn[name]
    if not tf.is_tensor(value):
        return f"recipe {type(recipe).__name__} draws {name} {type(value).__name__}"
    sizes = ", ".join(["B", *map(str, value.shape[1:])]) + ("," if value.shape.rank == 1 else "")
    return f"recipe {type(recipe).__name__} draws {name} {value.dtype.name} ({sizes})"


def _inputs(trained: TrainedNetworks, request: Request) -> Iterator[Input]:
    """Choose what each sample starts from; an interpolation starts from one sample of the data."""
    recipe, spec = trained.recipe, trained.recipe.data
    conditions = given(request.condition, request.conditions, spec)
    if recipe.shows_data:
        inputs = data_inputs(trained, request.data, request.seed, _warn)
        if conditions is not None:
            rows = itertools.cycle(conditions)
            inputs = ({**one, "conditions": next(rows)} for one in inputs)
        inputs = each_repeated(inputs, request.members)
    elif spec.conditions and conditions is None:
        raise UserError(f"the run has conditions, which samples need: give {described(spec)}")
    else:
        inputs = blank_inputs(spec, conditions)
    return inputs if request.interpolate is None else itertools.repeat(next(inputs))


def _warn(line: str) -> None:
    print(f"hvdgan: warning: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
