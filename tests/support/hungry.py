"""A recipe that asks for more memory than any machine has, in its third step on one rank."""

import os

import tensorflow as tf

from hvdgan.cli.launcher import launched
from tiny import Tiny

_NUMBERS = 2**48


class Hungry(Tiny):
    """HVDGAN_HUNGRY is the number of the rank; another value: none."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        mine = os.environ.get("HVDGAN_HUNGRY") == str(launched()[2])
        count = tf.where(batch.random.step == 2, tf.constant(_NUMBERS if mine else 1, tf.int64), 1)
        return loss + tf.reduce_sum(tf.zeros(count[None])), metrics
