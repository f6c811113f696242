"""The order of the samples is a function of seed and step."""

import numpy as np
import pytest

from hvdgan.data.order import sample_indices


def sequence(seed, steps, batch, num_images):
    return np.concatenate([sample_indices(seed, step * batch, batch, num_images) for step in range(steps)])


@pytest.mark.parametrize(("num_images", "batch"), [(10, 5), (10, 4), (7, 12), (5, 64), (1, 3)])
def test_every_epoch_holds_each_image_once(num_images, batch):
    steps = 6 * num_images
    indices = sequence(3, steps, batch, num_images)
    assert indices.dtype == np.int64 and indices.shape == (steps * batch,)
    epochs = indices.reshape(-1, num_images)
    assert (np.sort(epochs, axis=1) == np.arange(num_images)).all()


def test_epochs_and_seeds_differ():
    epochs = sequence(0, 4, 1000, 1000).reshape(4, 1000)
    other = sequence(1, 4, 1000, 1000).reshape(4, 1000)
    orders = {tuple(order) for order in [*epochs, *other]}
    assert len(orders) == 8
    assert len(np.unique(np.diff(epochs[0]))) > 500  # not by a fixed stride


def test_the_order_is_the_one_of_earlier_versions():
    # A run that resumes after an upgrade of NumPy or of hvdgan must see the images that it would have seen.
    assert sample_indices(0, 0, 12, 10).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7, 5, 3]
    assert sample_indices(2**31 - 1, 12 * 10**9, 12, 10).tolist() == [7, 6, 1, 8, 9, 0, 2, 3, 4, 5, 2, 3]
