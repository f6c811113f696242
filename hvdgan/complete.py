"""The command hvdgan complete: fills holes of photographs with a trained completion network."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hvdgan.checkpoints.files import refuse_missing
from hvdgan.cli.app import command
from hvdgan.errors import UserError
from hvdgan.files import outputs
from hvdgan.settings.types import Blend, Count, NamedRecipe, Weights

_HELP = """Fill holes of photographs with a trained completion network.

RUN_DIR is a run folder of the recipe completion, whose newest checkpoint is used, or a checkpoint file. Pixels
outside the hole are not changed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request(NamedRecipe):
    """Holes to fill; the fields are the flags."""

    image: Path
    """photograph of any size, or a folder of photographs"""
    mask: Path
    """picture of the same size, white where to fill; or a folder with a mask of the same name for each photograph"""
    out: Path
    """.png to write; a folder if --image is one"""
    weights: Weights = "averaged"
    """averaged: moving averages of the weights, if the run has any; trained: the weights themselves"""
    blend: Blend = "feather"
    """method of joining the filling: none (pasted), feather (jump faded inwards), poisson (OpenCV's seamlessClone)"""
    batch_size: Count = 16
    """photographs that the network fills at a time"""
    whole: bool = False
    """fill at the full size of the photograph, instead of a square around the hole that is resized as in training"""
    tile: Count = 512
    """height and width of the tiles by which it is filled with --whole (pixels), which changes no number"""
    overwrite: bool = False
    """write over existing files"""


@command(name="complete", help_text=_HELP, first=refuse_missing)
def main(run_dir: Path, /, *, request: Annotated[Request, Parameter(name="*")]) -> None:
    folder = request.image.is_dir()
    if not folder and request.out.suffix.lower() != ".png":
        raise UserError(f"--out {request.out}: expected a name that ends in .png, which keeps every pixel as it is")
    (outputs.check_folder if folder else outputs.check_new)(request.out, overwrite=request.overwrite)
    files = _match(request) if folder else [(request.image, request.mask, request.out)]
    trained = load_trained(run_dir, request.recipe)
    if not trained.recipe.completes():
        raise UserError(
            f"{run_dir}: its recipe, {trained.config.recipe}, completes no images; expected a run of completion"
        )
    read = partial(read_photo, channels=trained.recipe.data.channels)
    for image, mask, _ in files:
        read(image, mask)  # raises before anything is written if any file cannot be used
    with recipe_errors.of(trained.recipe):
        whole = WholeFilling(trained, request.weights, request.tile) if request.whole else None
    for first in range(0, len(files), request.batch_size):
        some = files[first : first + request.batch_size]
        photos = [read(image, mask) for image, mask, _ in some]
        made = zip(photos, fill(trained, request.weights, photos), strict=True) if whole is None else map(whole, photos)
        for (photo, filled), (_, _, out) in zip(made, some, strict=True):
            pixels = blend_in(photo, filled, request.blend)
            outputs.write(out, partial(save_png, pixels=pixels, icc_profile=photo.icc_profile))
    print(f"{request.out}: {len(files):,} filled by {trained.checkpoint}, step {trained.step:,}")


# Here, so that help and a wrong command line need no TensorFlow.
from hvdgan.data.pixels import SUFFIXES
from hvdgan.files.png import save_png
from hvdgan.inference.filling import blend_in, fill, read_photo
from hvdgan.inference.trained import load_trained
from hvdgan.inference.whole_filling import WholeFilling
from hvdgan.recipe import recipe_errors


def _match(request: Request) -> list[tuple[Path, Path, Path]]:
    """Match the photographs and masks of two folders by their names without suffix; returns (image, mask, out)."""
    if not request.mask.is_dir():
        raise UserError(f"--mask {request.mask}: expected a folder, since --image {request.image} is one")
    images, masks = _by_stem("--image", request.image), _by_stem("--mask", request.mask)
    if alone := [(images | masks)[stem].name for stem in sorted(images.keys() ^ masks.keys())]:
        raise UserError(f"--image {request.image}, --mask {request.mask}: without a partner: {', '.join(alone)}")
    return [(path, masks[stem], request.out / f"{stem}.png") for stem, path in images.items()]


def _by_stem(flag: str, folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix.lower() not in SUFFIXES:
            continue
        if other := found.get(path.stem):
            raise UserError(f"{flag} {folder}: {other.name} and {path.name} differ by their suffix alone; rename one")
        found[path.stem] = path
    if not found:
        raise UserError(f"{flag} {folder}: no images in it; expected files named {', '.join(SUFFIXES)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
