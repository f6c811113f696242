"""Means over the steps between two log lines, also of windows that several ranks merge.

Modules: training.observations.
"""

import json
from fractions import Fraction

import pytest
import tensorflow as tf

from hvdgan.distributed.ranks import Ranks
from hvdgan.training.window import Window, merge_states


def test_a_window_averages_each_metric_over_the_steps_that_had_it():
    window = Window()
    window.add({"judge/loss": tf.constant(1.0), "wait_seconds": 0.1, "step_seconds": 0.5})
    window.add(
        {"judge/loss": tf.constant(2.0), "fool/loss": tf.constant(5.0), "wait_seconds": 0.3, "step_seconds": 1.5}
    )
    assert window.means() == pytest.approx(
        {"step_seconds": 1.0, "wait_seconds": 0.2, "judge/loss": 1.5, "fool/loss": 5.0}
    )


@pytest.mark.parametrize("size", [2, 7])
def test_the_merged_window_of_uneven_slices_has_the_mean_over_all_samples_and_the_count_of_each(size):
    for batch_size in range(size, size + 9):
        ranks = [Ranks(rank=rank, size=size, slice_unit=1) for rank in range(size)]
        weights = ranks[0].weights(batch_size)
        local = [last - first for first, last in (each.slice_of(batch_size) for each in ranks)]
        mean = float(Fraction(sum(samples * (rank + 1) for rank, samples in enumerate(local)), batch_size))
        for count in (1, 3, 50):
            states = [{"judge/loss": [(rank + 1.0) * count, count]} for rank in range(size)]
            merged = merge_states(states, weights)
            where = f"{batch_size} samples, {count} steps"
            assert merged["judge/loss"][1] == count, where
            window = Window(json.loads(json.dumps(merged)))
            assert window.means()["judge/loss"] == pytest.approx(mean, rel=1e-12), where
            window.add({"judge/loss": mean})
            assert window.state()["judge/loss"][1] == count + 1
