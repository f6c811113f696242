"""Every recipe on two ranks: each stage changes what it owns, and computes what one rank computes."""

import functools
import hashlib
import tempfile
from pathlib import Path

import numpy as np
import pytest

from building import assert_equal_gradients, changed, data_of, filled, start_equally, tiny_run, trained, values_of
from hvdgan.distributed.ranks import Ranks
from shared_layers import CoGAN, InsideAnother, TwoOptimizers
from small import RECIPES, long_but, settings, small, write_showers


@pytest.fixture(scope="module")
def built(ranks):
    """A function that builds a run of a recipe, by name, on some ranks."""
    folder = Path(ranks.gather(tempfile.mkdtemp() if ranks.is_root else "", "folder")[0])
    if ranks.is_root:
        write_showers(folder / "showers.npz")
    ranks.gather(None, "written")
    return functools.partial(_built, folder)


def _built(folder, name, ranks, **others):
    recipe, options = small(name)
    return filled(tiny_run(recipe, options, ranks, **settings(name, folder), **others))


def assert_owned(run, index, before, after):
    """Check that exactly the variables that a stage owns have changed, equally on both ranks."""
    stage, networks = run.plan.stages[index], run.steps[index].networks  # a stage that grows has parts of them
    moved = changed(before, after)
    assert {n.split("/")[1] for n in moved if not n.startswith(("loss_scales", "state/"))} == set(stage.owns)
    trainable = {f"networks/{owned}/{v.path}" for owned in stage.owns for v in networks[owned].trainable_variables}
    assert len(trainable & moved) > 0.8 * len(trainable)
    weights = hashlib.sha256(b"".join(after[n].tobytes() for n in sorted(trainable))).hexdigest()
    assert len(set(run.ranks.gather(weights, "weights"))) == 1


# In float32 it is asserted below; mixed_bfloat16 has the same types but for one, and no loss scale.
@pytest.mark.parametrize("name", long_but("dcgan"))
def test_each_stage_changes_what_it_owns_equally_on_both_ranks(ranks, built, name):
    run = built(name, ranks, precision="mixed_float16")
    for scale in run.state.loss_scales.values():
        scale.value.assign(2.0**3)  # from its first value it takes some skipped steps to what fits
    for index in range(len(run.plan.stages)):
        before = values_of(run)
        metrics, finite = run.steps[index](0, 1, data_of(run))  # in its first step nothing has faded in
        assert all(finite) and all(np.isfinite(value) for value in metrics.values())
        assert_owned(run, index, before, values_of(run))


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES)
def test_two_ranks_compute_what_one_computes(ranks, built, name):
    """BatchNorm synchronised where there is some; the gradients of the first step of every stage, and the metrics."""
    alone = built(name, Ranks())
    norm = any("moving_mean" in variable for variable in values_of(alone))
    together = built(name, ranks, sync_batch_norm=norm)
    for index in range(len(together.plan.stages)):
        start_equally(alone, together)
        before = values_of(together)
        results = [run.steps[index](0, 1, data_of(run))[0] for run in (alone, together)]
        mine = {metric: float(value) for metric, value in results[1].items()}
        everyones = ranks.gather(mine, "metrics")
        for metric, value in results[0].items():
            mean = sum(each[metric] for each in everyones) / 2
            assert mean == pytest.approx(float(value), rel=2e-3, abs=1e-4), metric
        stage, after = together.plan.stages[index], values_of(together)
        assert_owned(together, index, before, after)
        assert_equal_gradients(stage.owns, values_of(alone), after)


@pytest.mark.long
@pytest.mark.parametrize("recipe", [CoGAN, InsideAnother, TwoOptimizers])
def test_two_ranks_train_shared_layers_and_several_optimizers_as_one_does(ranks, recipe):
    alone, together = (tiny_run(recipe, ranks=each, sync_batch_norm=True) for each in (Ranks(), ranks))
    start_equally(alone, together)
    one, two = trained(alone, 3), trained(together, 3)
    weights = [name for name in one if name.startswith(("networks/", "ema/"))]
    assert all(np.abs(two[name] - one[name]).max() < 2e-6 for name in weights)
