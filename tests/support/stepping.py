"""A recipe that asks its own process to stop in each step, so that a process does one."""

import os
import signal

import numpy as np
import tensorflow as tf

from tiny import Tiny


class OneStep(Tiny):
    """Tiny, which sends itself SIGUSR2."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        sent = tf.ensure_shape(tf.numpy_function(_signal, [batch.random.step], tf.float32, stateful=True), ())
        return loss + sent, metrics


def _signal(step: np.int64) -> np.float32:
    os.kill(os.getpid(), signal.SIGUSR2)
    return np.float32(0)
