"""Pairs of inputs and images in files: finds partners, and refuses data that hold no pairs before the first step."""

import os
from collections.abc import Iterable, Sequence

import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.data.base.source import BadFile, in_words, printable

UNPAIRED = "unpaired data, such as CycleGAN's trainA and trainB, is not supported"
_SIDES = ("A", "B")
"""the subfolders of inputs and of images"""
_SAMPLE = 64
_MOST = 0.5
"""fraction of the sample that need not be pairs: single bad files are left out later, when they are decoded"""


def sample_of(count: int) -> list[int]:
    """Numbers of at most 64 images, spread evenly over all.

    Args:
        count: number of all images, >= 0.
    """
    return np.unique(np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64)).tolist()


def refuse_single_images(
    where: str, names: Sequence[str], sizes: Sequence[Sequence[int] | None], otherwise: str
) -> None:
    """Refuse images that do not hold an input in the left half and its image in the right one.

    Args:
        where: name of the data, with which the error begins.
        names: names of the images of a sample.
        sizes: widths and heights of upright images in pixels; None for an image that cannot be read.
        otherwise: the other way in which such data can hold pairs.

    Raises:
        UserError: most of them are not twice as wide as high; the message names the first.
    """
    known = [(name, size[0], size[1]) for name, size in zip(names, sizes, strict=True) if size is not None]
    single = [(name, width, height) for name, width, height in known if width != 2 * height]
    if len(single) <= _MOST * len(known):
        return
    name, width, height = single[0]
    raise UserError(
        f"{where}: {name} has {width} x {height} pixels; a recipe of pairs takes images twice as wide as high, with "
        f"the input in the left half and its image in the right, or {otherwise}; {UNPAIRED}"
    )


def refuse_without_partners(
    where: str, found: Sequence[object], alone: Sequence[BadFile], max_bad_fraction: float | None = None
) -> None:
    """Refuse two folders if too many of their files have no partner.

    Args:
        where: name of the data, with which the error begins.
        found: the pairs.
        alone: the files without a partner.
        max_bad_fraction: largest fraction of pairs that may lack one file, in [0, 1]; None: one half.

    Raises:
        UserError: the fraction is exceeded, or there are no pairs; the message names the first files.
    """
    limit = _MOST if max_bad_fraction is None else max_bad_fraction
    if not alone or (found and len(alone) <= limit * (len(found) + len(alone))):
        return
    allow = ""
    if found and max_bad_fraction is not None:
        allow = f"; add the missing ones, or allow that with --max-bad-fraction (now {max_bad_fraction:g})"
    raise UserError(
        f"{where}: {len(alone)} of {2 * len(found) + len(alone)} files have no partner: {in_words(alone)}; a pair is "
        f"two files of the same path in A (inputs) and B (images){allow}; {UNPAIRED}"
    )


def in_two_folders(folder: str, files: Iterable[str]) -> bool:
    """Check that all images lie in the subfolders A and B."""
    both = all(os.path.isdir(os.path.join(folder, side)) for side in _SIDES)
    return both and all(file.startswith(("A/", "B/")) for file in files)


def match_partners(files: Iterable[str]) -> tuple[list[tuple[str, ...]], list[BadFile]]:
    """Pairs of an input and the image of the same path, and the files without a partner."""
    sides: dict[str, dict[str, str]] = {side: {} for side in _SIDES}
    alone = []
    for file in files:
        side, _, path = file.partition("/")
        stem = os.path.splitext(path)[0]
        if stem in sides[side]:
            alone.append(BadFile(printable(file), f"{printable(sides[side][stem])} has the same name"))
        else:
            sides[side][stem] = file
    inputs, images = sides.values()
    for one, other, side in ((inputs, images, "B"), (images, inputs, "A")):
        alone += [BadFile(printable(one[stem]), f"no partner in {side}") for stem in one if stem not in other]
    return [(inputs[stem], images[stem]) for stem in inputs if stem in images], alone
