"""--accumulate: micro-batches one after another give the gradients of the whole batch.

Modules: training.gradients.
"""

import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run, values_of
from hvdgan.cli.errors import UserError
from tiny import Labelled, Staged, Tiny, TinyOptions


def trained(recipe=Tiny, steps=5, **settings):
    run = tiny_run(recipe, options=TinyOptions(steps=20), **settings)
    step = stage_step(run, len(run.schedule.stages) - 1)
    for number in range(steps):
        metrics, _ = step(number, number, data_of(run, number))
    return values_of(run), {name: float(value) for name, value in metrics.items()}


@pytest.mark.parametrize("parts", [2, 16])
def test_micro_batches_equal_the_whole_batch(parts):
    whole, metrics = trained(Staged)
    cut, cut_metrics = trained(Staged, accumulate=parts)
    for name, value in whole.items():
        assert np.linalg.norm(cut[name] - value) <= 1e-4 * np.linalg.norm(value) + 1e-7, name
    assert cut_metrics == pytest.approx(metrics, rel=1e-4)


def test_labels_and_flips_go_with_their_images():
    run = tiny_run(Labelled, accumulate=4, flip=True)
    labels = run.source.labels[:16]
    metrics, _ = stage_step(run)(0, 0, {**data_of(run), "labels": tf.constant(labels)})
    assert float(metrics["judge/label"]) == pytest.approx(labels.mean())


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="--accumulate 3: a rank's 16 images of each global batch of 16"):
        tiny_run(accumulate=3)
