"""Batches as a rank of some size reads them."""

from hvdgan.data.pipeline import Batches


def batches_of(source, *, global_batch_size, rank=0, size=1, start_step=0, position=None, **changes):
    """The slices of one rank, from a step or from a position on; ranks have slices of one size."""
    bounds = [number * global_batch_size // size for number in (rank, rank + 1)]
    position = start_step * global_batch_size if position is None else position
    options = {"seed": 0, "threads": 2, "prefetch": 1, "max_bad_fraction": 0.0, "device": None}
    return Batches(
        source, global_batch_size=global_batch_size, places=tuple(bounds), position=position, **(options | changes)
    )
