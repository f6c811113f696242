"""The collectives of two ranks, their cores, and the broken files that they share."""

import os

import numpy as np
import pytest

from hvdgan.data import BadFile
from hvdgan.errors import RankFailed, RunError
from hvdgan.errors.shared_errors import from_root
from hvdgan.evaluation.moments import Moments
from hvdgan.training.observations import BadFiles
from reading import numbered


def test_the_sums_of_all_ranks_are_those_of_one(ranks):
    """Moments of fixed features, each rank with every other one: in float32 seven digits would be left."""
    features = np.random.default_rng(0).normal(size=(101, 7))
    mine, whole = Moments(features[0]), Moments(features[0])
    mine.add(features[ranks.rank :: 2])
    whole.add(features)
    totals = {name: ranks.total(values) for name, values in mine.arrays().items()}
    together = Moments(features[0], totals)
    assert together.count == 101
    np.testing.assert_allclose(together.mean, whole.mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(together.covariance, whole.covariance, rtol=0, atol=1e-12)
    assert ranks.total(np.zeros((0, 3))).shape == (0, 3)
    mine = np.array([2.0**40 + 1 + ranks.rank])
    np.testing.assert_array_equal(ranks.stack(mine), [[2.0**40 + 1], [2.0**40 + 2]])
    np.testing.assert_array_equal(ranks.broadcast_array(mine), [2.0**40 + 1])


def test_all_threads_of_a_rank_are_on_its_cores_and_horovods_do_not_preempt(ranks):
    threads = [int(name) for name in os.listdir("/proc/self/task")]
    assert len(os.sched_getaffinity(0)) == ranks.cores
    assert all(os.sched_getaffinity(thread) == os.sched_getaffinity(0) for thread in threads)
    policies = {thread: os.sched_getscheduler(thread) for thread in threads}
    assert os.SCHED_BATCH in policies.values()
    assert policies[os.getpid()] == os.SCHED_OTHER
    nice = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads if policies[thread] == os.SCHED_BATCH}
    assert nice == {19}
    assert os.getpriority(os.PRIO_PROCESS, os.getpid()) < 19


def test_each_file_is_sent_once_and_too_many_over_all_ranks_are_refused_by_all(ranks):
    """Rank 0 has found 500 files, rank 1 has found 200 other ones and 100 of the same."""
    theirs = [range(500), [*range(400, 500), *range(600, 800)]]
    met = [BadFile(f"{number:06d}.png", "truncated") for number in theirs[ranks.rank]]
    said = []
    bad_files = BadFiles(numbered(5000, bad_files=[("text.png", "empty")]), 0.5, said.append, {})
    for _ in range(2):
        bad_files.add(ranks.gather(bad_files.new(met), "bad files"))
        assert len(bad_files.known) == 701 == len(said) == len(set(said))
    names = list(bad_files.known)
    assert all(names == each for each in ranks.gather(names, "names"))
    with pytest.raises(RunError, match="2701 of 5001 samples cannot be read"):
        bad_files.add(ranks.gather([BadFile(f"{ranks.rank} {number}", "cut") for number in range(1000)], "bad files"))


def test_ranks_that_gather_different_things_all_stop(ranks):
    with pytest.raises(RunError, match="out of step: they gather save, bad files"):
        ranks.gather(1, "bad files" if ranks.rank else "save")


def test_any_failure_of_rank_0_ends_the_wait_of_the_others(ranks):
    def fail():
        raise KeyError("data")

    with pytest.raises(RankFailed, match=r"^rank 0 failed: KeyError\('data'\)$") as caught:
        from_root(fail, ranks, "a")
    assert isinstance(caught.value.__cause__, KeyError) == ranks.is_root
