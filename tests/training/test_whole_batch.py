"""Losses over the whole batch: on several ranks they train what one rank trains, and what cannot be is refused."""

import functools
import sys

import numpy as np
import pytest
import tensorflow as tf

import whole_losses
from building import tiny_run
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe import Batch, Random, Update
from hvdgan.recipe.recipe_errors import Mistake
from hvdgan.settings.config import Config
from hvdgan.training.summary import as_if
from hvdgan.training.whole_batch import Traffic, WholeBatch
from launching import CONTROLLERS, ROOT, launcher, run
from whole_losses import HALF, KINDS, Whole, WholeOptions

ALL = [*KINDS, f"moments{HALF}"]
alone = functools.cache(functools.partial(whole_losses.weights, ranks=Ranks()))


@pytest.mark.long
@pytest.mark.timeout(1900)
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_train_what_one_rank_trains_and_would_not_with_means_of_their_own(tmp_path, size):
    """50 steps of SGD on slices of unequal sizes; the largest difference of all weights."""
    script = [sys.executable, ROOT / "tests" / "support" / "whole_losses.py", tmp_path, *ALL]
    done = run([*launcher(size, CONTROLLERS[-1]), *script], cwd=tmp_path, seconds=1800, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    for kind in ALL:
        apart = {}
        for whole in (True, False):
            found = np.load(tmp_path / f"{kind}-{whole}.npz")
            apart[whole] = max(np.abs(found[name] - value).max() for name, value in alone(kind).items())
        assert apart[True] < (1e-3 if kind.endswith(HALF) else 1e-5) and apart[False] > 1e-3, (kind, apart)


def call(function, *, accumulate=1, reduce=True):
    """What a function of a loss's batch of 8 samples and of scores (8, 1) returns."""
    config = Config(recipe="tiny:Tiny", global_batch_size=8, accumulate=accumulate)

    def loss(scores):
        whole = WholeBatch(Ranks(), config, 1, Update("judge", ["critic"], function, reduce=reduce), "update judge")
        return function(whole, scores)

    return tf.function(loss, autograph=False)(tf.range(8.0)[:, None])


def slopes(batch, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        squares = batch.mean(x) * x
    return tape.jacobian(squares, x)


@pytest.mark.parametrize(
    ("function", "how", "text"),
    [
        (lambda batch, x: tf.cond(x[0, 0] > 1, lambda: batch.mean(x), lambda: x[0]), {}, "in a branch, a loop"),
        (lambda batch, x: tf.map_fn(batch.sum, x), {}, "in a branch, a loop"),
        (lambda batch, x: tf.vectorized_map(batch.sum, x), {}, "in a branch, a loop"),
        (slopes, {}, "the gradient of batch.mean, sum or gather is taken in a loop"),
        (lambda batch, x: batch.mean(x[:5]), {}, r"batch.mean of float32 \(5, 1\); its first axis must be"),
        (lambda batch, x: batch.mean(x[0, 0]), {}, r"batch.mean of float32 \(\); it takes a tensor of known shape"),
        (lambda batch, x: batch.sum(tf.boolean_mask(x, x > 3)), {}, "batch.sum of .* a tensor of known shape"),
        (lambda batch, x: batch.gather(tf.concat([x, x], 0)), {}, r"batch.gather of float32 \(16, 1\); its first axis"),
        (lambda batch, x: batch.mean(x), {"reduce": False}, "reduce=False"),
        (lambda batch, x: batch.gather(x), {"accumulate": 2}, "batch.gather needs the whole batch, .*--accumulate 2"),
    ],
)
def test_what_ranks_could_not_share_is_refused(function, how, text):
    with pytest.raises(Mistake, match=text):
        call(function, **how)


def test_samples_have_no_global_batch():
    batch = Batch(tf.zeros((2, 8, 8, 1)), None, Random(0, 0, 0, 2), {})
    for name in ("mean", "sum", "gather"):
        with pytest.raises(Mistake, match=f"batch.{name} is over the global batch .* sample"):
            getattr(batch, name)(batch.images)


def test_types():
    """Whole numbers and 16 bits are added up in float32."""
    assert float(call(lambda batch, x: batch.mean(x[:, 0] > 5))) == 0.25
    big = tf.fill((8, 1), tf.constant(6e4, tf.float16))
    mean, total, rows = call(lambda batch, x: (batch.mean(big), batch.sum(big), batch.gather(tf.range(8))))
    assert (mean.dtype, total.dtype, rows.dtype) == (tf.float16, tf.float32, tf.int32)
    np.testing.assert_array_equal([mean, total], [[big[0, 0]], [8 * 6e4]])


@pytest.mark.parametrize(
    ("kind", "judge", "reductions"),
    [
        # Four means of 6 numbers, and their gradients; the fooled discriminator's real features have none.
        ("moments", Traffic(8, 8 * 24), "16 reductions of 12 hops"),
        # Two gathered arrays (7, 12), half a reduction each, and their gradients.
        ("mmd", Traffic(3, 3 * 336), "7 reductions of 12 hops"),
    ],
)
def test_what_a_loss_sends_is_counted_on_one_rank(kind, judge, reductions):
    trained = tiny_run(Whole, WholeOptions(kind=kind), global_batch_size=14)
    assert trained.steps[0].traffic["judge"] == judge
    assert reductions in [*as_if(trained, 7)][-1]
