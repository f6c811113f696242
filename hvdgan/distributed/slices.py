"""The slice of the global batch that each rank computes, and the weight of a mean over it."""

import itertools

from hvdgan.cli.errors import UserError


def bounds(global_batch_size: int, size: int, slice_unit: int = 0) -> list[int]:
    """The borders of the ranks' slices of the global batch: rank r has the samples bounds[r] to bounds[r + 1] - 1.

    Args:
        global_batch_size: samples in a step of all ranks.
        size: number of ranks.
        slice_unit: slices are multiples of this many samples; 0: all slices are equal.

    Raises:
        UserError: the batch cannot be cut so, or a rank would have no samples.
    """
    if slice_unit:
        units, rest = divmod(global_batch_size, slice_unit)
        if units < size or rest:
            raise UserError(
                f"--global-batch-size {global_batch_size}: cannot be cut into micro-batches for {size} ranks; "
                f"take a multiple of {slice_unit} (--accumulate), at least {size * slice_unit}"
            )
        return [rank * units // size * slice_unit for rank in range(size + 1)]
    if global_batch_size % size:
        below = global_batch_size // size * size
        possible = f"{below} or {below + size}" if below else f"{size}"
        raise UserError(
            f"--global-batch-size {global_batch_size}: cannot be split evenly over {size} ranks; take {possible}"
        )
    return [rank * (global_batch_size // size) for rank in range(size + 1)]


def weights(borders: list[int]) -> list[float]:
    """The factor of each rank's mean over its slice, with which the mean over ranks is the mean over all samples.

    Args:
        borders: borders of the slices, from bounds().

    Returns:
        A factor per rank, exactly 1.0 where all slices are equal.
    """
    counts = [last - first for first, last in itertools.pairwise(borders)]
    return [count * len(counts) / borders[-1] for count in counts]
