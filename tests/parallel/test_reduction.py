"""Two ranks compute what one rank computes: reduced gradients in groups, statistics, decisions and evaluations."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from building import changed, data_of, stage_step, tiny_run, trained, values_of
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe.stages import Stage
from hvdgan.training.repeatable import operations
from tiny import Staged, Tiny, TinyOptions, Wide


def _weights(**settings):
    """The networks after 20 steps."""
    values = trained(tiny_run(options=TinyOptions(steps=20), **settings))
    return {name: value for name, value in values.items() if name.startswith("networks/")}


def assert_close(weights, expected):
    for name, value in expected.items():
        assert np.linalg.norm(weights[name] - value) <= 1e-4 * np.linalg.norm(value), name


def reductions_of(run, stage=0):
    """The Horovod operations in the traced graph of a step, also in the functions that it calls."""
    number = tf.constant(0, tf.int64)
    function = stage_step(run, stage).function(run.schedule.stages[stage].due(0))
    graph = function.get_concrete_function(number, number, data_of(run)).graph
    return [each for (*_, each), _ in operations(graph) if each.type.startswith("Horovod")]


def bytes_of(reductions):
    return sum(math.prod(value.shape) * value.dtype.size for op in reductions for value in op.inputs)


def test_ranks_that_share_a_gpu_reduce_over_the_hosts_memory_what_others_reduce(ranks):
    """Without a GPU here, only the devices in the graph tell: those of gradients and of BatchNorm's statistics."""
    sharing = dataclasses.replace(ranks, reduces_on_host=True)
    settings = {"options": TinyOptions(steps=20, norm="batch"), "sync_batch_norm": True}
    run = tiny_run(ranks=sharing, **settings)
    reductions = reductions_of(run)
    assert {operation.type for operation in reductions} >= {"HorovodAllreduce", "HorovodGroupedAllreduce"}
    assert all(operation.device.lower().endswith("cpu:0") for operation in reductions)
    assert changed(trained(tiny_run(ranks=ranks, **settings)), trained(run)) == set()


@pytest.mark.parametrize(("batch_size", "accumulate", "first"), [(5, 1, 2), (6, 2, 2)])
def test_uneven_slices_are_the_whole_batch(ranks, batch_size, accumulate, first):
    """As in an elastic run; a plain mean over the ranks would give the samples of the smaller slice too much weight."""
    uneven = dataclasses.replace(ranks, slice_unit=accumulate)
    assert uneven.slice_of(batch_size) == ((0, first) if ranks.rank == 0 else (first, batch_size))
    together = _weights(ranks=uneven, global_batch_size=batch_size, accumulate=accumulate)
    assert_close(together, _weights(ranks=Ranks(), global_batch_size=batch_size))


@pytest.mark.parametrize(
    ("stage", "owned", "other"), [(0, "generator", "discriminator"), (1, "discriminator", "generator")]
)
def test_an_update_leaves_what_it_does_not_own_bit_identical(ranks, stage, owned, other):
    run = tiny_run(Staged, TinyOptions(norm="batch"), ranks=ranks)
    moved = changed(values_of(run), trained(run, 3, stage))
    assert {name.split("/")[1] for name in moved} == {owned}
    assert not [name for name in moved if f"/{other}/" in name]


@pytest.mark.parametrize(("stage", "owned"), [(0, ["generator"]), (2, ["generator", "discriminator"])])
def test_the_bytes_all_reduced_are_those_of_the_owned_trainable_parameters(ranks, stage, owned):
    """Counted in the traced graph, from the inputs of its Horovod operations."""
    run = tiny_run(Staged, TinyOptions(norm="batch"), ranks=ranks)
    reductions = reductions_of(run, stage)
    assert {operation.type for operation in reductions} == {"HorovodAllreduce"}
    parameters = sum(
        math.prod(variable.shape) for name in owned for variable in run.state.networks[name].trainable_variables
    )
    assert bytes_of(reductions) == 4 * parameters
    # Ranks match tensors by name: stage and update must be in it.
    updates = [update.name for update in run.schedule.stages[stage].due(0)]
    for update in updates:
        assert any(f"{run.schedule.stages[stage].name}/{update}/" in operation.name for operation in reductions)


def test_compression_to_fp16_halves_the_bytes_and_changes_the_result_by_rounding_only(ranks):
    run = tiny_run(ranks=ranks, compression="fp16")
    networks = run.state.networks.values()
    parameters = sum(math.prod(v.shape) for network in networks for v in network.trainable_variables)
    assert bytes_of(reductions_of(run)) == 2 * parameters
    halved, whole = (_weights(ranks=ranks, compression=kind) for kind in ("fp16", "none"))
    apart = [np.linalg.norm(halved[name] - value) / np.linalg.norm(value) for name, value in whole.items()]
    assert 0 < max(apart) < 0.02


@pytest.mark.parametrize("parts", [1, 4])
def test_two_ranks_compute_what_one_computes_also_in_micro_batches(ranks, parts):
    together = _weights(ranks=ranks, accumulate=parts)
    assert_close(together, _weights(ranks=Ranks()))
    digests = ranks.gather({name: value.tobytes().hex() for name, value in together.items()}, "weights")
    assert digests[0] == digests[1]


def test_only_if_decides_from_the_mean_of_the_ranks(ranks):
    class Waiting(Tiny):
        def stages(self):
            judge, fool = super().stages()[0].updates
            steps = dataclasses.replace(judge, only_if=lambda metrics: metrics["rank"] > self.bound)
            return [Stage("adversarial", 4, [steps, fool])]

        def judge(self, nets, batch):
            loss, _ = super().judge(nets, batch)
            return loss, {"rank": float(ranks.rank)}

    uneven = dataclasses.replace(ranks, slice_unit=1)  # the mean over the samples of 3 is 2/3
    for bound, applied, peers, batch_size in (
        (0.4, 1.0, ranks, 16), (0.6, 0.0, ranks, 16), (0.6, 1.0, uneven, 3), (0.7, 0.0, uneven, 3)
    ):  # fmt: skip
        Waiting.bound = bound
        run = tiny_run(Waiting, ranks=peers, global_batch_size=batch_size)
        assert float(stage_step(run)(0, 0, data_of(run))[0]["judge/applied"]) == applied


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
    others = dataclasses.replace(run.ranks, size=size, on_gpu=on_gpu)
    assert reductions(run, stage_step(run).with_ranks(others)) == expected
