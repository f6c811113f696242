"""Horovod gets one group of gradients on CPUs, none on GPUs and for two ranks, one where bits are to be equal."""

import dataclasses

import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run
from hvdgan.training.repeatable import operations
from tiny import Wide


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
    ],
)
def test_horovod_gets_the_groups(ranks, settings, size, on_gpu, expected):
    """The graph of a third rank or of a GPU is traced, and not run."""
    run = tiny_run(Wide, ranks=ranks, global_batch_size=12, **settings)
    others = dataclasses.replace(ranks, size=size, on_gpu=on_gpu)
    assert reductions(run, stage_step(run).with_ranks(others)) == expected
