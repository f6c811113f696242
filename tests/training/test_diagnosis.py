"""The loss and variables that are named after an update that is not finite, whichever micro-batch they come from."""

import math

import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run
from hvdgan.training.bad_updates import not_finite
from tiny import Tiny


def has_white(batch):
    return tf.reduce_any(tf.reduce_all(batch.images == 1.0, axis=(1, 2, 3)))


class SickLoss(Tiny):
    """The loss of a batch with a white image is infinite."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        return loss + tf.where(has_white(batch), math.inf, 0.0), metrics


class SickGradient(Tiny):
    """The loss of a batch with a white image is finite; its gradient is that of the square root at 0."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        return loss + tf.sqrt(tf.where(has_white(batch), 0.0, 1.0) + 0.0 * metrics["real"]), metrics


@pytest.mark.parametrize(("accumulate", "white"), [(1, 5), (4, 0), (4, 5), (4, 15)])
@pytest.mark.parametrize(("recipe", "named"), [(SickLoss, ["loss"]), (SickGradient, [])])
def test_every_micro_batch_is_looked_at(recipe, named, accumulate, white):
    run = tiny_run(recipe, accumulate=accumulate)
    step, data = stage_step(run), data_of(run)
    assert not_finite(step, "judge", 0, data) == []
    images = data["images"].numpy()
    images[white] = 255
    sick = {**data, "images": tf.constant(images)}
    paths = [variable.path for variable in run.state.networks["discriminator"].trainable_variables]
    assert not_finite(step, "judge", 0, sick) == [*named, *paths]
    assert not_finite(step, "fool", 0, sick) == []
