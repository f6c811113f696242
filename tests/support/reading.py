"""Sources as --data names them, and the batches that a rank reads of them."""

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.data import Samples, open_source
from hvdgan.data.batches import Batches


def opened(data, **changes) -> Samples:
    """A source of 8 x 8 pixels, cropped to squares, with the defaults of all other settings."""
    return open_source(Config(data=str(data), **{"image_size": 8, "fit": "crop", **changes}))


def all_images(source: Samples) -> np.ndarray:
    """All images in their order."""
    return source.fetch_batch(np.arange(len(source)))


def batches_of(source, *, global_batch_size, rank=0, size=1, start_step=0, position=None, **changes):
    """The slices of one rank, from a step or from a position on; ranks have slices of one size."""
    bounds = [number * global_batch_size // size for number in (rank, rank + 1)]
    position = start_step * global_batch_size if position is None else position
    options = {"seed": 0, "threads": 2, "prefetch": 1, "max_bad_fraction": 0.0, "device": None}
    return Batches(
        source, global_batch_size=global_batch_size, places=tuple(bounds), position=position, **(options | changes)
    )
