"""The errors of collectives are distinguished from other errors of TensorFlow."""

import tensorflow as tf

from hvdgan.distributed.collective_errors import collective_failure


def test_an_error_of_a_collective_keeps_its_reason():
    failure = collective_failure(tf.errors.UnknownError(None, None, "Horovod has been shut down.\nmore"), lambda: None)
    assert "a collective has failed: Horovod has been shut down.; the rank that" in str(failure)
    assert collective_failure(tf.errors.UnknownError(None, None, "no such kernel"), lambda: None) is None
