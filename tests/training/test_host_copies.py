"""Copies of variables have their bits and types, and stay as they are when training continues."""

import keras
import numpy as np
import pytest

from hvdgan.training.state import copy_of


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (3, 2)])
def test_a_copy_stays_as_it_is_when_the_variable_changes(dtype, shape):
    variable = keras.Variable(np.ones(shape), dtype=dtype, trainable=False)
    copy = copy_of(variable)
    variable.assign(np.zeros(shape))
    assert isinstance(copy, np.ndarray) and copy.flags.c_contiguous
    assert copy.shape == shape and str(copy.dtype) == dtype and copy.astype(bool).all()
