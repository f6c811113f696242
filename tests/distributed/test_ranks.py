"""Ranks: slices of the global batch, tapes and bundles of gradients, errors of collectives; tests/parallel reduces.

Modules: distributed.backend, distributed.reduction, distributed.collective_errors.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvdgan.checkpoints import files
from hvdgan.cli.errors import UserError
from hvdgan.distributed import backend, reduction
from hvdgan.distributed.collective_errors import collective_failure
from hvdgan.distributed.ranks import Ranks
from launching import train


def test_one_rank_needs_no_horovod_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(backend, "horovod", lambda: pytest.fail("Horovod was imported"))
    ranks = Ranks()
    values = np.array([1.0, 2.0], np.float32)
    np.testing.assert_array_equal(ranks.stack(values), [values])
    np.testing.assert_array_equal(ranks.broadcast_array(values), values)
    assert ranks.gather({"a": 1}, "b") == [{"a": 1}]
    ranks.broadcast([])
    ranks.shutdown()


@pytest.mark.parametrize(
    ("batch_size", "slice_unit", "counts"), [(12, 0, [4, 4, 4]), (64, 1, [21, 21, 22]), (64, 2, [20, 22, 22])]
)
def test_slices_cover_the_batch_and_weigh_their_samples(batch_size, slice_unit, counts):
    ranks = [Ranks(rank, 3, slice_unit=slice_unit) for rank in range(3)]
    ends = list(itertools.accumulate(counts, initial=0))
    assert [rank.slice_of(batch_size) for rank in ranks] == list(itertools.pairwise(ends))
    assert ends[-1] == batch_size
    assert ranks[0].weights(batch_size) == pytest.approx([3 * count / batch_size for count in counts])


@pytest.mark.parametrize(
    ("batch_size", "slice_unit", "advice"),
    [(10, 0, "take 9 or 12"), (2, 0, "take 3$"), (2, 1, "a multiple of 1 "), (64, 3, "a multiple of 3 ")],
)
def test_a_batch_that_cannot_be_split_is_refused(batch_size, slice_unit, advice):
    with pytest.raises(UserError, match=f"--global-batch-size {batch_size}: .*{advice}"):
        Ranks(0, 3, slice_unit=slice_unit).slice_of(batch_size)


@pytest.fixture
def tensors():
    shapes = [(3, 5), (7,), (512, 512), (2, 2, 3), (256, 300), ()]
    random = np.random.default_rng(0)
    wide = [tf.constant(random.normal(size=shape), tf.float32) for shape in shapes]
    return [*wide, tf.constant([1.0, 2.0], tf.float16), tf.constant([3.0], tf.float16)]


def copied(tape):
    """Another instance of the tape's class, as Horovod makes it."""
    return type("Copy", (type(tape),), {})()


def test_small_gradients_of_a_dtype_are_one_bundle_and_unbundling_reverses_it(tensors):
    assert reduction.bundles(tensors) == [[0, 1, 3, 5], [2], [4], [6, 7]]
    back = reduction.unbundle(reduction.bundle(tensors, tensors), tensors)
    for before, after in zip(tensors, back, strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)


def test_a_copy_of_a_tape_of_gradients_gives_these(tensors):
    assert copied(reduction.tape_of_gradients(tensors)).gradient(tf.constant(0.0), tensors) is tensors


def test_an_owned_tape_counts_the_variables_that_the_loss_does_not_touch(tensors):
    variables = [keras.Variable(tensor).value for tensor in tensors[:3]]
    with reduction.OwnedTape() as tape:
        loss = tf.reduce_sum(variables[0])
    with pytest.raises(reduction.UntouchedVariables) as caught:
        tape.gradient(loss, variables)
    assert caught.value.indices == [1, 2]


def test_an_error_of_a_collective_keeps_its_reason():
    failure = collective_failure(tf.errors.UnknownError(None, None, "Horovod has been shut down.\nmore"), lambda: None)
    assert "a collective has failed: Horovod has been shut down.; the rank that" in str(failure)
    assert collective_failure(tf.errors.UnknownError(None, None, "no such kernel"), lambda: None) is None


FLAGS = "--recipe tiny:Wide --image-size 8 --global-batch-size 12 --steps 4 --log-every 2 --sample-every 0".split()


def test_three_ranks_repeat_their_bits(tmp_path):
    found = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        train(tmp_path / name, *FLAGS, "--run-dir", "run", ranks=3)
        found.append(dict(files.read_tensors(files.newest(tmp_path / name / "run" / "checkpoints"))))
    for name, value in found[0].items():
        assert value.tobytes() == found[1][name].tobytes(), name
