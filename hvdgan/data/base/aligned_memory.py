"""Memory for batches, at addresses that TensorFlow takes over without copying."""

import math
from collections.abc import Sequence

import numpy as np

_ALIGNMENT = 64


def room(count: int, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Memory for some samples, with any content.

    Args:
        count: number of samples.
        shape: shape of one.
        dtype: type of their numbers.

    Returns:
        An array (count, *shape), whose first byte is at a multiple of 64.
    """
    size = count * math.prod(shape) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    return raw[first : first + size].view(dtype).reshape(count, *shape)


def aligned(values: np.ndarray) -> np.ndarray:
    """The array itself if its memory can be handed over as it is; else a copy."""
    if values.flags.c_contiguous and values.flags.writeable and values.ctypes.data % _ALIGNMENT == 0:
        return values
    copy = room(len(values), values.shape[1:], values.dtype)
    copy[...] = values
    return copy
