"""The recipes of volumes and fields with the faults of failing.py; their metrics tell the samples of a step."""

import tensorflow as tf

from failing import struck
from hvdgan.recipes.calo3d import Calo3D
from hvdgan.recipes.downscale import Downscale


def seen_in(batch):
    """Means of what the batch holds."""
    more = {"conditions": batch.conditions, "inputs": batch.inputs, "constants": batch.constants}
    parts = {"images": batch.images, **{name: each for name, each in more.items() if each is not None}}
    return {name: tf.reduce_mean(each) for name, each in parts.items()}


class Showers(Calo3D):
    """calo3d."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        return loss + struck(batch), {**metrics, **seen_in(batch)}


class Fields(Downscale):
    """downscale."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        return loss + struck(batch), {**metrics, **seen_in(batch)}
