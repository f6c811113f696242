"""The command hvdgan sample: draws samples with the networks of a run."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import functools
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hvdgan.checkpoints.files import refuse_missing
from hvdgan.cli.app import command, refuse_more_processes
from hvdgan.errors import UserError
from hvdgan.files import outputs
from hvdgan.settings.types import Count, Fraction, NamedRecipe, Seed, Weights

_HELP = """Draw samples with a trained generator, in one process and without a launcher, except for --whole.

RUN_DIR is a run folder, whose newest checkpoint is used, or a checkpoint file."""

_NUMPY = (".npy", ".npz")
_ARRAYS = (*_NUMPY, ".h5", ".hdf5")
OF_XARRAY = (".nc", ".zarr")
_OF_WAVES = {"recipe", "out", "data", "weights", "separate", "seed", "overwrite"}
"""fields of Request that waves of arrays have"""
PEER_TIMEOUT = 120.0
"""silence of a rank after which all ranks end (seconds)"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request(NamedRecipe):
    """Samples to draw; the fields are the flags."""

    out: Path
    """.png to write, a grid of all samples; .npy, .npz or .h5 for their numbers in the units of the data; .wav for
    waves, one after another"""
    samples: Count = 64
    """number of samples"""
    members: Count = 1
    """samples in a row from each input of the data, an ensemble by different noise; --samples counts all of them"""
    weights: Weights = "averaged"
    """averaged: moving averages of the weights, if the run has any; trained: the weights themselves"""
    standing_statistics: Count | None = None
    """number of generated batches of --batch-size whose BatchNorm statistics replace the moving ones, such as 100"""
    separate: bool = False
    """--out is a folder: write one picture for each sample, 000000.png and so on; for arrays 000000.npy, for waves
    000000.wav"""
    seed: Seed = 0
    """seed of the samples; sample i of a seed is the same for every --samples"""
    class_: Annotated[str | None, Parameter(name="--class")] = None
    """class to draw, by its name or its number from 0, for recipes with classes; default: those that the recipe
    draws"""
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
    """data to start from, if the recipe needs some; default: those that the run was trained on. For a recipe that makes
    waves of arrays of any length: .npy or .npz with one for each wave"""
    axes: str | None = None
    """axes of a sample in the arrays of --data, as for hvdgan train; default: as the run's settings say"""
    whole: bool = False
    """draw whole fields of any size, in the order of --data, for a recipe that starts from inputs and was trained on
    parts of such fields; also over several ranks, and with --out .nc or .zarr"""
    tile: Count = 512
    """height and width of the tiles by which whole fields are computed (pixels), which changes no number; more need
    more memory"""
    overwrite: bool = False
    """write over existing files"""


@command(name="sample", help_text=_HELP, first=refuse_missing, one_process=False)
def main(run_dir: Path, /, *, request: Annotated[Request, Parameter(name="*")]) -> None:
    check_output(request.out, separate=request.separate, overwrite=request.overwrite, whole=request.whole)
    if request.whole:
        return _draw_whole(run_dir, request)
    refuse_more_processes()
    trained = load_trained(run_dir, request.recipe)
    recipe, standing = trained.recipe, ""
    truncation = 1.0 if request.truncation is None else request.truncation
    with recipe_errors.of(recipe):
        if recipe.data.rate and recipe.translates() and (request.data or "").lower().endswith(_NUMPY):
            _write_waves(trained, request)
            return
        _check(recipe, request)
        class_ = _class_numbers(recipe.data).get(request.class_ or "")
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
            class_=class_,
            truncation=truncation,
            interpolate=request.interpolate,
            num=request.samples,
        )
        drawn = draw_batches(drawing, _inputs(trained, request), request.samples, request.batch_size)
        _write(recipe, request, drawn)
    if class_ is not None:
        standing += f"; class {': '.join([str(class_), *recipe.data.class_names[class_ : class_ + 1]])}"
    print(f"{request.out}: {request.samples:,} samples from {trained.checkpoint}, step {trained.step:,}{standing}")


# Here, so that help and a wrong command line need no TensorFlow.
import numpy as np
import tensorflow as tf

from hvdgan.distributed import joining
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors.shared_errors import agree, from_root, on_all
from hvdgan.inference.field_files import write_dataset
from hvdgan.inference.inputs import blank_inputs, data_inputs, given_conditions, open_fields
from hvdgan.inference.sample_files import write_samples
from hvdgan.inference.sounds import waves_of
from hvdgan.inference.standing import set_standing_statistics
from hvdgan.inference.tiles import WholeFields
from hvdgan.inference.trained import TrainedNetworks, load_trained
from hvdgan.inference.whole_fields import FieldDrawing
from hvdgan.recipe import DataSpec, recipe_errors
from hvdgan.recipe.contract import drawn_by
from hvdgan.recipe.display import all_shown
from hvdgan.recipe.recipe import Recipe
from hvdgan.recipe.sampling import Drawing, Input, SampleRandom, are_classes, are_latents, draw_batches, joined


def _draw_whole(run_dir: Path, request: Request) -> None:
    """Draw whole fields over all ranks."""
    joining.claim()
    with joining.joined(PEER_TIMEOUT) as ranks:
        load = functools.partial(load_trained, run_dir, request.recipe)
        trained = on_all(load, ranks, "the checkpoint", names_rank=True)
        with recipe_errors.of(trained.recipe):
            line = _write_whole(trained, request, ranks)
    if ranks.is_root:
        print(line)


def _write_whole(trained: TrainedNetworks, request: Request, ranks: Ranks) -> str:
    recipe, out = trained.recipe, request.out
    others = ("separate", "class_", "interpolate", "standing_statistics")
    if given := [name.strip("_") for name in others if getattr(request, name) not in (None, False)]:
        raise UserError(f"--{given[0].replace('_', '-')}: cannot be used with --whole; leave one of the two out")
    if not recipe.shows_data:
        raise UserError(f"--whole: {type(recipe).__name__} starts from no fields of the data; leave it out")
    _check(recipe, request)
    conditions = given_conditions(request.condition, request.conditions, recipe.data)

    def prepared() -> FieldDrawing:
        source = open_fields(trained, request.data, request.axes)
        truncation = 1.0 if request.truncation is None else request.truncation
        fields = WholeFields(recipe, trained.nets(request.weights), seed=request.seed, truncation=truncation)
        count = min(request.samples, len(source) * request.members)
        return FieldDrawing(fields, source, recipe.data, request.tile, count, request.members, conditions)

    drawing = on_all(prepared, ranks, "the fields", names_rank=True)
    agree({"tiles": [str(each) for each in drawing.tiles]}, ranks, "the tiles")

    def write(made: np.ndarray) -> None:
        data, spec = request.data or trained.config.data, recipe.data
        if out.suffix in OF_XARRAY:
            save = functools.partial(write_dataset, made=made, spec=spec, source=drawing.source, data=data)
            place = outputs.write_folder if out.suffix == ".zarr" else outputs.write
            place(out, functools.partial(save, members=request.members))
            return
        facts = [{name: each[0] for name, each in drawing.facts(n).items()} for n in range(drawing.count)]
        write_samples(out, {"images": made}, spec, facts, of_data=True)

    with drawing.drawn(out, ranks) as made:
        from_root(lambda: write(made), ranks, "the output")
    space, many = " x ".join(map(str, drawing.shape[1:-1])), len(drawing.tiles)
    reach = max(far * pixels for far, pixels in zip(drawing.fields.reach, drawing.fields.pixels, strict=True))
    what = f"{drawing.count:,} samples of {space} by {many:,} tile{'s' * (many > 1)} each, a reach of {reach} pixels"
    return f"{out}: {what}, from {trained.checkpoint}, step {trained.step:,}"


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


def _write(recipe: Recipe, request: Request, batches: Iterator[tuple[dict[str, np.ndarray], list[Input]]]) -> None:
    spec = recipe.data
    if not request.separate:
        drawn, started = zip(*batches, strict=True)
        inputs = list(itertools.chain(*started))
        write_samples(request.out, all_shown(joined(drawn), spec), spec, inputs, of_data=recipe.shows_data)
        return
    number = 0
    for made, _ in batches:
        seen = all_shown(made, spec)
        for sample in zip(*seen.values(), strict=True):
            for name, array in zip(seen, sample, strict=True):
                path = request.out / f"{number:06}{'' if name == 'images' else f'-{name}'}.npy"
                if name == "images" and (spec.is_pictures or spec.rate):
                    path = path.with_suffix(".png" if spec.is_pictures else ".wav")
                    write_samples(path, {name: array[None]}, spec, [])
                else:
                    write_samples(path, {"images": array}, spec, [])
            number += 1


def _write_waves(trained: TrainedNetworks, request: Request) -> None:
    """Write the waves of arrays of any length, one after another, or each to a file with the name of its array."""
    others = [each for each in dataclasses.fields(request) if each.name not in _OF_WAVES]
    given = [f"--{each.name.strip('_')}" for each in others if getattr(request, each.name) != each.default]
    if not request.separate and request.out.suffix.lower() != ".wav":
        given.append(f"--out {request.out}")
    if given:
        raise UserError(f"{given[0]}: waves are made of {request.data}; expected --out NAME.wav, or --separate")
    assert request.data is not None
    waves = dict(waves_of(trained, Path(request.data), request.weights, request.seed))
    files = {request.out / f"{name.replace('/', '-')}.wav": [wave] for name, wave in waves.items()}
    for path, each in files.items() if request.separate else [(request.out, [*waves.values()])]:
        write_samples(path, {"images": np.concatenate(each)[None]}, trained.recipe.data, [])
    print(f"{request.out}: {len(waves):,} waves from {trained.checkpoint}, step {trained.step:,}")


def check_output(path: Path, *, separate: bool, overwrite: bool, whole: bool = False) -> None:
    """Refuse an output that write_samples() could not write, before anything is computed."""
    if separate:
        outputs.check_folder(path, overwrite=overwrite)
    elif whole and path.suffix == ".zarr":
        outputs.check_new_folder(path, overwrite=overwrite, holds="zarr.json")
    elif path.suffix.lower() in (".png", ".wav", *_ARRAYS) or (whole and path.suffix in OF_XARRAY):
        outputs.check_new(path, overwrite=overwrite)
    else:
        raise UserError(
            f"--out {path}: expected a name that ends in .png for a picture, in .wav for waves, or in "
            f"{', '.join(_ARRAYS)} for numbers"
        )


def _class_numbers(spec: DataSpec) -> dict[str, int]:
    """What --class may give: names, and the numbers that are no names."""
    names = spec.class_names[: spec.num_classes]
    return {str(each): each for each in range(spec.num_classes)} | {each: n for n, each in enumerate(names)}


def _check(recipe: Recipe, request: Request) -> None:
    """Refuse flags that the recipe does not support, with what was expected and what to do."""
    drawn = drawn_by(recipe, SampleRandom(0, tf.constant([0], tf.int64)))
    name, classes, chosen = type(recipe).__name__, recipe.data.num_classes, request.class_
    if recipe.shows_data and recipe.domains:
        raise UserError(
            f"{name} has the domains {' and '.join(recipe.domains)}, from one of which samples would start: give "
            "pictures of one to hvdgan translate, if the recipe has translate(), or look at the grids in the run folder"
        )
    members, data = f"--members {request.members}", f"--data {request.data}"
    needs_data = recipe.shows_data or (request.standing_statistics is not None and bool(recipe.data.conditions))
    for is_wrong, words in (
        (
            chosen is not None and not are_classes(drawn.get("classes")),
            f"--class {chosen}: the draw() of {name} returns no integers (B,) under the name classes, such as "
            'random.integers("classes", (), self.data.num_classes)',
        ),
        (
            chosen is not None and chosen not in _class_numbers(recipe.data),
            f"--class {chosen}: the data of this run have {classes or 'no'} classes; expected a smaller number, or "
            f"{'the name of one' if recipe.data.class_names else 'none'}",
        ),
        (
            request.truncation is not None and not recipe.truncates,
            "--truncation: the recipe of this run cannot truncate; leave the flag out",
        ),
        (
            request.data is not None and not needs_data,
            f"{data}: the recipe of this run starts from no images; leave the flag out",
        ),
        (
            request.out.suffix.lower() == ".wav" and not recipe.data.rate,
            f"--out {request.out}: the run was not trained on wave files; name a .png, or an array",
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
