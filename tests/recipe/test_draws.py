"""Random draws depend on the seed, the step and the sample, never on the rank."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.recipe.draws import Random


def draws(seed=0, step=0, scope="", key="latents"):
    return Random(seed, tf.constant(step, tf.int64), 0, 12, scope).normal(key, (5,)).numpy()


@pytest.mark.parametrize("other", [{"seed": 1}, {"step": 1}, {"scope": "fool"}, {"key": "mixing"}])
def test_seed_step_scope_and_key_each_change_the_numbers(other):
    np.testing.assert_array_equal(draws(), draws())
    assert np.all(draws() != draws(**other))


@pytest.mark.parametrize("shape", [(), (5, 2)])
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_a_part_has_the_numbers_that_one_draw_for_the_global_batch_has_there(kind, shape):
    step, size = 3, 13
    digest = int.from_bytes(hashlib.sha256(b"7//latents").digest()[:8], "little", signed=True)
    draw = {"normal": tf.random.stateless_normal, "uniform": tf.random.stateless_uniform}[kind]
    whole = draw((size, *shape), tf.constant([digest, step], tf.int64), alg="philox").numpy()
    for first in range(size):
        for count in {1, size - first}:
            for place in (first, tf.constant(first)):
                random = Random(7, tf.constant(step, tf.int64), place, count)
                part = getattr(random, kind)("latents", shape).numpy()
                np.testing.assert_array_equal(part, whole[first : first + count])


def test_a_part_of_a_huge_global_batch_computes_only_its_own_numbers():
    @tf.function
    def draw(step):
        return Random(7, step, 1_000_000_000, 2).normal("latents", (512,))

    graph = draw.get_concrete_function(tf.TensorSpec((), tf.int64)).graph
    largest = max(output.shape.num_elements() for operation in graph.get_operations() for output in operation.outputs)
    assert largest <= 2 * 512 + 3
    assert len(np.unique(draw(tf.constant(0, tf.int64)))) > 1000


def test_the_numbers_stay_those_of_old_checkpoints():
    """A resumed run must continue with the same latents under a later version of this package."""
    golden = [-0.1639506, 1.4980861, -1.1796837, -0.90379304, 0.14603832]
    np.testing.assert_allclose(draws(seed=3, step=11, scope="/draw")[0], golden, rtol=1e-5)
