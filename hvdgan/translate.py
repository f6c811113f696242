"""The command hvdgan translate: translates pictures into another domain with the networks of a run."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hvdgan.checkpoints.files import refuse_missing
from hvdgan.cli.app import command
from hvdgan.errors import RunError, UserError
from hvdgan.files import outputs
from hvdgan.settings.types import NamedRecipe, Seed, Weights

_HELP = """Translate pictures into another domain, each under its own name.

RUN_DIR is a run folder, whose newest checkpoint is used, or a checkpoint file. The recipe is cyclegan, pix2pix or your
own with translate(). A picture keeps its size."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request(NamedRecipe):
    """Pictures to translate; the fields are the flags."""

    data: Path
    """folder of pictures of any size; for a recipe of pairs, a folder of inputs"""
    out: Path
    """folder to write: for each picture a .png of its name, in folders as in --data"""
    domain: str | None = None
    """domain of the pictures, for recipes of several; default: the first"""
    weights: Weights = "averaged"
    """averaged: moving averages of the weights, if the run has any; trained: the weights themselves"""
    seed: Seed = 0
    """seed of the recipe's draws; those of picture i do not depend on the other pictures"""
    overwrite: bool = False
    """write over existing files"""


@command(name="translate", help_text=_HELP, first=refuse_missing)
def main(run_dir: Path, /, *, request: Annotated[Request, Parameter(name="*")]) -> None:
    outputs.check_folder(request.out, overwrite=request.overwrite)
    if not request.data.is_dir():
        raise UserError(f"--data {request.data}: no such folder; expected a folder of pictures")
    files = find(str(request.data), SUFFIXES).files
    if not files:
        raise UserError(f"--data {request.data}: no pictures in it; expected files named {', '.join(SUFFIXES)}")
    names = [Path(file).with_suffix(".png") for file in files]
    if twice := [printable(str(name)) for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"--data {request.data}: two pictures would become {', '.join(twice)}; rename one of each two")
    trained = load_trained(run_dir, request.recipe)
    domain = _domain(trained, run_dir, request.domain)
    broken, resized = [], 0
    for number, (file, name) in enumerate(zip(files, names, strict=True)):
        try:
            pixels, is_resized = _translated(trained, request, file, number, domain)
        except BadImage as bad:
            broken.append(bad.bad_file)
            continue
        resized += is_resized
        outputs.write(request.out / name, partial(save_png, pixels=pixels))
    if resized:
        height, width, _ = trained.recipe.data.shape
        print(f"{resized:,} pictures were resized to {width} x {height} pixels, as in training, and back")
    if broken:
        raise RunError(f"--data {request.data}: {len(broken)} of {len(files)} cannot be read: {in_words(broken)}")
    print(f"{request.out}: {len(files):,} translated by {trained.checkpoint}, step {trained.step:,}")


# Here, so that help and a wrong command line need no TensorFlow.
import numpy as np
import tensorflow as tf

from hvdgan.data import BadImage
from hvdgan.data.bad_files import content_of, in_words, printable
from hvdgan.data.pictures import find
from hvdgan.data.pixels import SUFFIXES, read_image, read_size
from hvdgan.files.png import as_image, save_png
from hvdgan.inference.trained import TrainedNetworks, load_trained
from hvdgan.recipe import recipe_errors
from hvdgan.recipe.display import to_uint8
from hvdgan.recipe.layer_draws import LayerDraws
from hvdgan.recipe.sampling import SampleRandom


def _domain(trained: TrainedNetworks, run_dir: Path, asked: str | None) -> str:
    """The domain of the pictures; "" if the recipe has none."""
    recipe = trained.recipe
    if not (recipe.translates() and recipe.data.is_pictures):
        what = "of no pictures" if recipe.translates() else f"whose recipe, {trained.config.recipe}, has no translate()"
        raise UserError(f"{run_dir}: is a run {what}; expected one of cyclegan or pix2pix")
    if asked is not None and asked not in recipe.domains:
        known = ", ".join(recipe.domains)
        raise UserError(f"--domain {asked}: {f'expected one of {known}' if known else 'the recipe has no domains'}")
    return asked or (recipe.domains[0] if recipe.domains else "")


def _translated(
    trained: TrainedNetworks, request: Request, file: str, number: int, domain: str
) -> tuple[np.ndarray, bool]:
    """The translation of a file, (H, W, C) uint8, and whether it was resized on the way."""
    recipe, content = trained.recipe, content_of(str(request.data), file)
    spec, multiple = recipe.data.domains.get(domain, recipe.data), recipe.translates_multiples_of
    width, height = read_size(printable(file), content)
    seen = (height, width) if multiple else (spec.shape[0], spec.shape[1])
    pixels = read_image(printable(file), content, seen, spec.channels, "stretch")
    if multiple:  # at least two: a layer may mirror the edge of what is left of a smaller picture
        more = [max(2, -(-side // multiple)) * multiple - side for side in seen]
        pixels = np.pad(pixels, [(0, more[0]), (0, more[1]), (0, 0)], mode="symmetric")
    images = tf.constant(pixels[None], tf.float32) / 127.5 - 1.0
    wanted = f"it must return pictures {tuple(images.shape[:3])} of 1 or 3 channels in [-1, 1]"
    random = SampleRandom(request.seed, tf.constant([number], tf.int64)).scoped("draw")
    with recipe_errors.of(recipe), LayerDraws(random).in_use():
        made = recipe_errors.call(
            recipe.translate, trained.nets(request.weights), images, domain, random, what="translate()", wanted=wanted
        )
        if getattr(made, "shape", (0,))[:3] != images.shape[:3] or made.shape[3] not in (1, 3):
            raise recipe_errors.Mistake(
                f"translate() returns {recipe_errors.described(made)}; {wanted}", recipe.translate
            )
    translated = to_uint8(np.asarray(made[0]))
    if multiple:
        return translated[:height, :width], False
    is_resized = seen != (height, width)
    if is_resized:
        again = np.asarray(as_image(translated).resize((width, height)))
        translated = again if again.ndim == 3 else again[..., None]
    return translated, is_resized


if __name__ == "__main__":
    sys.exit(main())
