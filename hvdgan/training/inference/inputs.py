"""Supplies the images that samples start from: those of a data source, or blank ones."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from hvdgan.cli.errors import RunError, UserError
from hvdgan.data import BadImage, Source, open_source
from hvdgan.data.order import sample_indices
from hvdgan.recipe import DataSpec
from hvdgan.training.inference.trained import Trained

Input = tuple[np.ndarray, "int | None"]
"""an image (H, W, C) uint8, and its label or None"""


def blank_inputs(spec: DataSpec) -> Iterator[Input]:
    """Yield blank images without end, with every class in turn if there are classes."""
    blank = np.zeros((spec.image_size, spec.image_size, spec.channels), np.uint8)
    return ((blank, number % spec.num_classes if spec.num_classes else None) for number in itertools.count())


def data_inputs(trained: Trained, data: str | None, seed: int) -> Iterator[Input]:
    """Yield images of a data source without end, in an order given by the seed; broken images are skipped.

    Args:
        trained: run whose recipe starts from images.
        data: value of --data; None: the data that the run was trained on.
        seed: seed of the order.

    Raises:
        UserError: the data cannot be opened.
        RunError: no image can be read.
    """
    config, spec = trained.config, trained.recipe.data
    wanted = dataclasses.replace(
        config,
        data=data or config.data,
        image_size=spec.image_size,
        channels=1 if spec.channels == 1 else 3,
    )
    try:
        source = open_source(wanted, paired=trained.recipe.paired)
    except UserError as error:
        hint = "" if data else "; if the images of the run have moved, name them or others with --data"
        raise UserError(f"{error}{hint}") from error
    return _in_order(source, seed)


def _in_order(source: Source, seed: int) -> Iterator[Input]:
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
