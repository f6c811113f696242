"""Copies of variables have their bits and types, and stay as they are when training continues."""

import keras
import numpy as np
import pytest

from building import tiny_run
from hvdgan.training.state import copies_of, copy_of


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int64", "uint32", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_a_copy_stays_as_it_is_when_the_variable_changes(dtype, shape):
    variable = keras.Variable(np.ones(shape), dtype=dtype, trainable=False)
    copy = copy_of(variable)
    variable.assign(np.zeros(shape))
    assert isinstance(copy, np.ndarray) and copy.flags.c_contiguous
    assert copy.shape == shape and str(copy.dtype) == dtype and copy.astype(bool).all()


def test_the_copies_of_a_run_are_what_keras_reads():
    tensors = tiny_run(precision="mixed_float16").state.tensors()
    copies = copies_of(tensors)
    assert copies.keys() == tensors.keys()
    for name, variable in tensors.items():
        assert copies[name].tobytes() == np.asarray(variable.numpy()).tobytes()
