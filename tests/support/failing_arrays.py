"""The recipe of volumes with the faults of failing.py; its metrics tell the samples of a step."""

import tensorflow as tf

from failing import struck
from hvdgan.recipes.calo3d import Calo3D


class Showers(Calo3D):
    """calo3d."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        seen = {"images": tf.reduce_mean(batch.images), "conditions": tf.reduce_mean(batch.conditions)}
        return loss + struck(batch), {**metrics, **seen}
