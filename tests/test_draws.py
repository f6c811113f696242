import numpy as np
import pytest
import tensorflow as tf

from hvdgan.distributed import Ranks
from hvdgan.draws import Random


def draws(seed=0, step=0, scope="", key="latents"):
    return Random(seed, tf.constant(step, tf.int64), 0, 12, 12, scope).normal(key, (5,)).numpy()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_any_number_of_ranks_draws_the_same_numbers(size, kind):
    whole = getattr(Random(7, tf.constant(3, tf.int64), 0, 12, 12), kind)("latents", (5, 2)).numpy()
    slices = [
        getattr(Random(7, tf.constant(3, tf.int64), first, last - first, 12), kind)("latents", (5, 2)).numpy()
        for first, last in (Ranks(rank, size, uneven_by=1).slice_of(12) for rank in range(size))
    ]
    np.testing.assert_array_equal(np.concatenate(slices), whole)
    assert len(np.unique(whole)) == whole.size


@pytest.mark.parametrize("other", [{"seed": 1}, {"step": 1}, {"scope": "fool"}, {"key": "mixing"}])
def test_seed_step_scope_and_key_each_change_the_numbers(other):
    np.testing.assert_array_equal(draws(), draws())
    assert np.all(draws() != draws(**other))


def test_numbers_are_what_their_names_say():
    random = Random(0, tf.constant(0, tf.int64), 0, 20_000, 20_000)
    normal, uniform = random.normal("a", ()).numpy(), random.uniform("b", ()).numpy()
    assert abs(normal.mean()) < 0.03 and abs(normal.std() - 1) < 0.03
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.01


def test_the_numbers_stay_those_of_old_checkpoints():
    """A resumed run must go on with the same latents under a later version of this package."""
    golden = [-0.1639506, 1.4980861, -1.1796837, -0.90379304, 0.14603832]
    np.testing.assert_allclose(draws(seed=3, step=11, scope="/draw")[0], golden, rtol=1e-5)
