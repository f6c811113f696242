"""The cores of each rank, and threads that do not preempt the compute thread."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from hvdgan.distributed import affinity
from hvdgan.distributed.affinity import cores_of_rank
from hvdgan.distributed.ranks import Ranks

NICE = os.getpriority(os.PRIO_PROCESS, 0)


def test_ranks_that_are_not_bound_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert [cores_of_rank(Ranks(0, size, 0, size)) for size in (1, 2, 3, 16)] == [8, 4, 2, 1]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    assert cores_of_rank(Ranks(0, 2, 0, 2, "mpirun")) == 4  # mpirun has bound this rank
    assert cores_of_rank(Ranks(0, 2, 0, 2, "horovodrun")) == 2  # an allocation, which the ranks share


@pytest.mark.parametrize(
    ("mine", "ranks", "cores", "expected"),
    [
        ({0, 1, 2, 3}, 2, 2, [{0, 1}, {2, 3}]),
        ({1, 4, 5}, 3, 1, [{1}, {4}, {5}]),
        ({0, 1}, 4, 1, [{0, 1}] * 4),  # more ranks than cores: the system shares them out
        ({3}, 2, 1, [{3}, {3}]),  # bound by hand
    ],
)
def test_ranks_of_a_host_get_cores_of_their_own(mine, ranks, cores, expected, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: mine)
    for rank in range(ranks):
        bound = [mine]
        monkeypatch.setattr(os, "sched_setaffinity", lambda _, to, bound=bound: bound.append(set(to)))
        affinity.bind(rank, ranks, cores)
        assert bound[-1] == expected[rank]


def _in_a_new_thread(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_background_threads_have_the_lowest_priority_and_later_ones_the_ordinary_one():
    def priority() -> tuple[int, int]:
        return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)

    ordinary = (os.SCHED_OTHER, NICE)

    with ThreadPoolExecutor(1) as earlier, ThreadPoolExecutor(1) as background:
        earlier.submit(priority).result()
        with affinity.background_threads():
            assert background.submit(priority).result()[0] == os.SCHED_BATCH
        assert background.submit(priority).result() == (os.SCHED_BATCH, 19)
        assert earlier.submit(priority).result() == priority() == _in_a_new_thread(priority) == ordinary


def test_a_policy_that_the_user_has_chosen_stays():
    def policies() -> list[int]:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with ThreadPoolExecutor(1) as background, affinity.background_threads():
            within = os.sched_getscheduler(0)
            background.submit(int).result()
        return [within, os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)]

    assert _in_a_new_thread(policies) == [os.SCHED_IDLE, os.SCHED_IDLE, NICE]


def test_a_system_that_permits_no_other_policy_is_no_error(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with affinity.background_threads():
        assert _in_a_new_thread(lambda: os.getpriority(os.PRIO_PROCESS, 0)) == NICE
