"""The order of the samples: a function of seed and step, the same for any number of ranks."""

import functools

import numpy as np


def sample_indices(seed: int, position: int, count: int, num_images: int) -> np.ndarray:
    """The images at consecutive positions of the order.

    The batches cut one endless sequence of positions. Position p belongs to epoch p // num_images, and every epoch has
    its own permutation of all images. A batch may therefore straddle two epochs, all batches have the same size, and no
    image is left out.

    Args:
        seed: seed of the run, >= 0.
        position: first position, counted from 0.
        count: number of positions; may exceed num_images.
        num_images: number of images in the data set, > 0.

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


# Two for each of two domains: a batch that straddles epochs needs both, and the next batches the later one again.
@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, num_images: int) -> np.ndarray:
    """The order of one epoch, int64 (num_images,).

    NumPy guarantees the raw bits of a bit generator, but not the results of `Generator.permutation` (NEP 19). The bits
    are therefore sorted here, and a run resumed under another NumPy has the same order.
    """
    bits = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(num_images)
    order = np.argsort(bits, kind="stable")
    order.flags.writeable = False
    return order
