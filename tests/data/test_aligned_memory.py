"""Batches are read into memory that TensorFlow takes over without copying."""

import numpy as np
import pytest

from hvdgan.data.base.aligned_memory import aligned, room


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (3,), (5, 7, 1)])
def test_each_block_begins_at_a_multiple_of_64(dtype, shape):
    blocks = [room(count, shape, np.dtype(dtype)) for count in (1, 2, 5)]
    for count, block in zip((1, 2, 5), blocks, strict=True):
        assert block.shape == (count, *shape) and block.dtype == dtype and block.flags.c_contiguous
        assert block.ctypes.data % 64 == 0
        block[...] = 1  # all of it can be written
        assert (block == 1).all()


def test_an_array_is_copied_only_if_it_must_be():
    block = room(4, (6,), np.dtype(np.int32))
    block[...] = np.arange(24).reshape(4, 6)
    assert aligned(block) is block
    constant = block.copy()
    constant.flags.writeable = False
    for other in (block.T, block[1:], block[:, ::2], constant):
        copy = aligned(other)
        np.testing.assert_array_equal(copy, other)
        assert not np.shares_memory(copy, other) and aligned(copy) is copy
