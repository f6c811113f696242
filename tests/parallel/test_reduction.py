"""Two ranks compute what one rank computes: reduced gradients in groups, statistics, decisions and BatchNorm.
Modules: distributed.batch_norm"""

import dataclasses
import importlib
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from building import changed, data_of, stage_step, start_equally, tiny_run, trained, values_of
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import UserError
from hvdgan.recipe.stages import Stage, Update
from hvdgan.training.repeatable import operations
from launching import ROOT
from plain_loop import AtOnce, assert_equal, plain_loop
from tiny import Staged, Tiny, TinyOptions, Wide
from wrong import KeptMeans, OwnMean


def _weights(**settings):
    """The networks after 20 steps."""
    values = trained(tiny_run(options=TinyOptions(steps=20), **settings))
    return {name: value for name, value in values.items() if name.startswith("networks/")}


@pytest.fixture(scope="module")
def together(ranks):
    return _weights(ranks=ranks)


def assert_close(weights, expected):
    for name, value in expected.items():
        assert np.linalg.norm(weights[name] - value) <= 1e-4 * np.linalg.norm(value), name


def reductions_of(run, step, updates=slice(None)):
    """The Horovod operations in the traced graph of a step's updates, also in the functions that it calls."""
    number = tf.constant(0, tf.int64)
    data = {name: value[: step.count] for name, value in data_of(run).items()}
    graph = step.function(step.stage.due(0)[updates]).get_concrete_function(number, number, data).graph
    return [each for (*_, each), _ in operations(graph) if each.type.startswith("Horovod")]


def bytes_of(reductions):
    return sum(math.prod(value.shape) * value.dtype.size for op in reductions for value in op.inputs)


def parameters_of(run, owned=("generator", "discriminator")):
    return sum(math.prod(v.shape) for name in owned for v in run.state.networks[name].trainable_variables)


def test_ranks_that_share_a_gpu_reduce_over_the_hosts_memory(ranks):
    """Without a GPU here, only the devices in the graph tell: those of gradients and of BatchNorm's statistics."""
    sharing = dataclasses.replace(ranks, reduces_on_host=True)
    run = tiny_run(ranks=sharing, options=TinyOptions(norm="batch"), sync_batch_norm=True)
    reductions = reductions_of(run, stage_step(run))
    assert {operation.type for operation in reductions} >= {ALONE, GROUP}
    assert all(operation.device.lower().endswith("cpu:0") for operation in reductions)


def test_uneven_slices_are_the_whole_batch(ranks):
    """As in an elastic run; a plain mean over the ranks would give the samples of the smaller slice too much weight."""
    uneven = dataclasses.replace(ranks, slice_unit=2)
    assert uneven.slice_of(6) == ((0, 2) if ranks.rank == 0 else (2, 6))
    found = _weights(ranks=uneven, global_batch_size=6, accumulate=2)
    assert_close(found, _weights(ranks=Ranks(), global_batch_size=6))


def test_an_update_changes_what_it_owns_alone_and_all_reduces_the_bytes_of_its_trainable_parameters(ranks):
    """All else keeps its bits. Bytes are counted in the traced graph, from the inputs of its Horovod operations."""
    run = tiny_run(Staged, TinyOptions(norm="batch"), ranks=ranks)
    for index, owned in enumerate((["generator"], ["discriminator"], ["generator", "discriminator"])):
        moved = changed(values_of(run), trained(run, 3, index))
        assert {name.split("/")[1] for name in moved} == {*owned}
        reductions = reductions_of(run, stage_step(run, index))
        assert {operation.type for operation in reductions} == {ALONE}
        assert bytes_of(reductions) == 4 * parameters_of(run, owned)
        # Ranks match tensors by name: stage and update must be in it.
        stage = run.plan.stages[index]
        for update in stage.due(0):
            assert any(f"{stage.name}/{update.name}/" in operation.name for operation in reductions)


def test_compression_to_fp16_halves_the_bytes_and_changes_the_result_by_rounding_only(ranks, together):
    run = tiny_run(options=TinyOptions(steps=20), ranks=ranks, compression="fp16")
    assert bytes_of(reductions_of(run, stage_step(run))) == 2 * parameters_of(run)
    halved = trained(run)
    apart = [np.linalg.norm(halved[name] - value) / np.linalg.norm(value) for name, value in together.items()]
    assert 0 < max(apart) < 0.02


def test_two_ranks_compute_what_one_computes_also_in_micro_batches(ranks, together):
    alone = _weights(ranks=Ranks())
    for found in (together, _weights(ranks=ranks, accumulate=4)):
        assert_close(found, alone)
        digests = ranks.gather({name: value.tobytes().hex() for name, value in found.items()}, "weights")
        assert digests[0] == digests[1]


def test_batch_norm_over_two_ranks_computes_what_one_computes(ranks):
    settings = {"options": TinyOptions(norm="batch", steps=20), "sync_batch_norm": True, "global_batch_size": 13}
    uneven = dataclasses.replace(ranks, slice_unit=1)
    found, alone = (trained(tiny_run(ranks=these, **settings)) for these in (uneven, Ranks()))
    for name in alone:
        if name.startswith(("networks/", "ema/")):
            # A bias before BatchNorm has a gradient of zero, and Adam makes steps of its rounding: hence the 1e-3.
            # Without synchronisation the kernels differ by 0.07 and more.
            assert np.linalg.norm(found[name] - alone[name]) <= 1e-4 * np.linalg.norm(alone[name]) + 1e-3, name
    everyones = ranks.gather({name: value.tobytes().hex() for name, value in found.items()}, "state")
    assert everyones[0] == everyones[1]


class Penalised(Tiny):
    """A gradient penalty through a synchronised BatchNormalization, whose gradient mixes the samples of all ranks."""

    ema = ()
    shows_data = True

    def networks(self):
        parts = [layers.Dense(6), layers.BatchNormalization(synchronized=True), layers.Activation("tanh")]
        return {"critic": keras.Sequential([keras.Input(self.data.shape), layers.Flatten(), *parts, layers.Dense(1)])}

    def optimizers(self):
        return {"critic": keras.optimizers.SGD(1.0)}

    def stages(self):
        return [Stage("judge", 1, [Update("judge", ["critic"], self.judge)])]

    def judge(self, nets, batch):
        with tf.GradientTape() as tape:
            tape.watch(batch.images)
            made = nets.critic(batch.images)
        slopes = tape.gradient(made, batch.images)
        return tf.reduce_mean((made - 1) ** 2) + tf.reduce_mean(tf.reduce_sum(slopes**2, (1, 2, 3))), {}

    def sample(self, nets, batch):
        return batch.images


def test_second_derivatives_through_batch_norm_over_two_ranks_are_those_of_the_whole_batch(ranks):
    run, alone = tiny_run(Penalised, ranks=ranks), tiny_run(Penalised)
    start_equally(alone, run)
    for each in (run, alone):
        stage_step(each)(0, 0, data_of(each))
    mine, expected = (each.state.networks["critic"].trainable_variables for each in (run, alone))
    for variable, other in zip(mine, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), other.numpy(), atol=1e-5, err_msg=variable.path)


def test_a_mean_over_the_samples_of_one_rank_that_a_loss_reads_is_refused_by_both(ranks):
    with pytest.raises(UserError, match="the loss reads discriminator/kept/mean"):
        tiny_run(OwnMean, ranks=ranks)
    assert all(stage_step(run := tiny_run(KeptMeans, ranks=ranks))(0, 0, data_of(run))[1])


@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_simultaneous_step_is_that_of_a_plain_loop(ranks, accumulate):
    options, settings = TinyOptions(norm="batch"), {"ema_decay": 0.5}
    expected = plain_loop(tiny_run(AtOnce, options, **settings), steps=8, groups=2, micro_batches=accumulate)
    run = tiny_run(AtOnce, options, ranks, sync_batch_norm=True, accumulate=accumulate, **settings)
    assert_equal(trained(run, 8), expected, 1e-5)  # a hundredth of a step of Adam; 20 steps had 1.2e-6 of rounding


FURTHER = [pytest.param(name, marks=pytest.mark.long) for name in ("BYOL", "MeanTeacher", "LearntWeights")]


@pytest.mark.parametrize("name", ["Codebook", *FURTHER])
def test_the_examples_that_keep_something_compute_what_one_rank_computes(ranks, monkeypatch, name):
    monkeypatch.syspath_prepend(ROOT / "examples")
    examples = importlib.import_module("my_losses")
    recipe, options = getattr(examples, name), examples.MyOptions(width=4)
    alone = trained(tiny_run(recipe, options), 8)
    for settings in ({}, {"accumulate": 2}) if name != "Codebook" else ({},):  # batch.mean is of the whole batch
        assert_close(trained(tiny_run(recipe, options, ranks, **settings), 8), alone)


def test_only_if_decides_from_the_mean_of_the_ranks(ranks):
    class Waiting(Tiny):
        """Its first update has a lower bound in the first step than later."""

        bounds: tuple[float, float]

        def stages(self):
            judge, fool = super().stages()[0].updates
            steps = dataclasses.replace(judge, only_if=lambda metrics: metrics["rank"] > metrics["bound"])
            return [Stage("adversarial", 4, [steps, fool])]

        def judge(self, nets, batch):
            loss, _ = super().judge(nets, batch)
            return loss, {"rank": float(ranks.rank), "bound": tf.where(batch.random.step == 0, *self.bounds)}

    uneven = dataclasses.replace(ranks, slice_unit=1)  # the mean over the samples of 3 is 2/3
    for bounds, peers, batch_size in (((0.4, 0.6), ranks, 16), ((0.6, 0.7), uneven, 3)):
        Waiting.bounds = bounds
        run = tiny_run(Waiting, TinyOptions(norm="batch"), peers, global_batch_size=batch_size)
        for step, applied in ((0, 1.0), (1, 0.0)):
            before = values_of(run)
            metrics, finite = stage_step(run)(step, step, data_of(run))
            assert float(metrics["judge/applied"]) == applied and all(finite)
            moved = {name for name in changed(before, values_of(run)) if "/discriminator/" in name}
            of_calls = {name for name in moved if "/moving_" in name}  # the networks were called all the same
            assert of_calls and bool(moved - of_calls) == bool(applied)


ALONE, GROUP = "HorovodAllreduce", "HorovodGroupedAllreduce"


@pytest.mark.parametrize(
    ("deterministic", "expected"),
    [
        (False, {(2, False): [(ALONE, 1)] * 2, (3, False): [(GROUP, 2)], (3, True): [(ALONE, 1)] * 2}),
        (True, {(2, False): [(GROUP, 2)], (3, True): [(GROUP, 2)]}),
    ],
)
def test_horovod_gets_the_groups(ranks, deterministic, expected):
    """By the number of ranks, and on GPUs; the graph of a third rank or of a GPU is traced, and not run."""
    run = tiny_run(Wide, ranks=ranks, global_batch_size=12, deterministic=deterministic)
    for (size, on_gpu), groups in expected.items():
        step = stage_step(run, ranks=dataclasses.replace(run.ranks, size=size, on_gpu=on_gpu))
        # The first update, of one large and one small bundle.
        found = [(each.type, len(each.inputs)) for each in reductions_of(run, step, slice(1))]
        assert found == groups
