"""Horovod gets one group of gradients on CPUs, none on GPUs and for two ranks, one where bits are to be equal."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run, values_of
from hvdgan.training.repeatable import operations
from tiny import TinyOptions, Wide


def reductions(run, step):
    """The numbers of tensors in the collectives of the first update, of one large and one small bundle."""
    number = tf.constant(0, tf.int64)
    data = {name: value[: step.forward.count] for name, value in data_of(run).items()}
    graph = step.function(run.schedule.stages[0].due(0)[:1]).get_concrete_function(number, number, data).graph
    return [(o.type, len(o.inputs)) for (*_, o), _ in operations(graph) if o.type.startswith("Horovod")]


ALONE, GROUP = "HorovodAllreduce", "HorovodGroupedAllreduce"


@pytest.mark.parametrize(
    ("settings", "size", "on_gpu", "expected"),
    [
        ({}, 2, False, [(ALONE, 1)] * 2),
        ({}, 3, False, [(GROUP, 2)]),
        ({}, 3, True, [(ALONE, 1)] * 2),
        ({"deterministic": True}, 2, False, [(GROUP, 2)]),
        ({"deterministic": True}, 3, True, [(GROUP, 2)]),
        ({"accumulate": 2}, 3, False, [(GROUP, 2)]),
    ],
)
def test_horovod_gets_the_groups(ranks, settings, size, on_gpu, expected):
    """The graph of a third rank or of a GPU is traced, and not run."""
    run = tiny_run(Wide, ranks=ranks, global_batch_size=12, **settings)
    others = dataclasses.replace(ranks, size=size, on_gpu=on_gpu)
    assert reductions(run, stage_step(run).with_ranks(others)) == expected


@pytest.mark.parametrize("more", [{}, {"accumulate": 2}, {"compression": "fp16", "accumulate": 2}])
def test_groups_do_not_change_what_two_ranks_compute(ranks, more):
    """Two numbers have one order of summation, so the bits are equal."""
    results = []
    for deterministic in (False, True):
        run = tiny_run(Wide, TinyOptions(steps=20), ranks, deterministic=deterministic, global_batch_size=16, **more)
        for number in range(3):
            stage_step(run)(number, number, data_of(run, number))
        results.append(values_of(run))
    for other in results[1:]:
        for name, value in results[0].items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)
