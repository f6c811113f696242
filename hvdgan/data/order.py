"""The order of the samples: a function of seed and step, the same for any number of ranks."""

import functools

import numpy as np


def sample_indices(seed: int, position: int, count: int, num_images: int) -> np.ndarray:
    """Which images stand at some positions of the order.

    The batches cut one endless sequence of positions, in which position p belongs to epoch p // num_images, and every
    epoch is a permutation of all images of its own. A batch may therefore straddle epochs, no batch is shorter than the
    others, and no image is ever left out.

    Args:
        seed: the run's seed, >= 0.
        position: the first, counted from 0.
        count: how many; may exceed num_images.
        num_images: images in the data set, > 0.

    Returns:
        int64 (count,), indices in [0, num_images).
    """
    positions = np.arange(position, position + count, dtype=np.int64)
    epochs, places = np.divmod(positions, num_images)
    indices = np.empty_like(positions)
    for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
        inside = epochs == epoch
        indices[inside] = _permutation(seed, epoch, num_images)[places[inside]]
    return indices


# Two: a batch that straddles epochs needs both, and the next batches need the later one again.
@functools.lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, num_images: int) -> np.ndarray:
    """The order of one epoch, int64 (num_images,).

    NumPy keeps the raw bits of a bit generator for ever but not what `Generator.permutation` makes of them (NEP 19), so
    the bits are sorted here: a run resumed under another NumPy goes on in the same order.
    """
    bits = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(num_images)
    order = np.argsort(bits, kind="stable")
    order.flags.writeable = False
    return order
