"""Horovod's stall shutdown ends a run whose rank is alive but takes no part in collectives."""

import re
import sys

import pytest

from launching import EACH_CONTROLLER, launcher, run

# Each rank reduces three times; then rank 1 waits for a signal that nobody sends.
SLEEPS = """
import signal
import horovod.tensorflow as hvd
import tensorflow as tf
hvd.init()
for step in range(3):
    hvd.allreduce(tf.ones(4), name="all")
if hvd.rank() == 1:
    signal.pause()
hvd.allreduce(tf.ones(4), name="all")
"""
SHORT = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "3", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "6"}


@pytest.mark.parametrize("controller", EACH_CONTROLLER)
def test_a_rank_that_stands_still_is_named_and_ends_the_run(controller, tmp_path):
    """Over Gloo this needs the Horovod that launch/setup.sh builds (launch/patches)."""
    done = run([*launcher(2, controller), sys.executable, "-c", SLEEPS], tmp_path, seconds=120, **SHORT)
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert re.search(r"Missing ranks:\n.*\b1!: \[", said), said
    assert "stalled for longer than 6 seconds. Will shutdown." in said
