"""Threads compute results ahead of the caller: in the order of the items, a limited number, until they are closed."""

import itertools
import threading

import pytest

from hvdgan.data.read_ahead import ReadAhead


@pytest.mark.parametrize(("threads", "ahead"), [(1, 1), (1, 4), (4, 1), (4, 6)])
def test_results_arrive_in_the_order_of_the_items(threads, ahead):
    results = ReadAhead(str, itertools.count(5, 3), threads, ahead)
    assert list(itertools.islice(results, 200)) == [str(5 + 3 * number) for number in range(200)]
    results.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_no_more_are_begun_than_may_wait(threads):
    begun, enough = [], threading.Event()

    def note(item):
        begun.append(item)
        if len(begun) >= 5 + 4:
            enough.set()
        return item

    results = ReadAhead(note, itertools.count(), threads, 4)
    assert list(itertools.islice(results, 5)) == [0, 1, 2, 3, 4]
    assert enough.wait(60)
    results.close()
    assert sorted(begun) == list(range(9))  # five that were taken, and four


def test_several_threads_work_at_once():
    """Each waits for the others: with less than four at work it would not end."""
    barrier = threading.Barrier(4)
    results = ReadAhead(lambda item: barrier.wait(60) * 0 + item, itertools.count(), 4, 4)
    assert [next(results) for _ in range(8)] == list(range(8))
    barrier.abort()
    results.close()


def test_an_exception_arrives_in_its_turn_and_the_others_follow():
    results = ReadAhead(lambda item: 1 / (item - 2), itertools.count(), 3, 5)
    assert [next(results), next(results)] == [-0.5, -1.0]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert next(results) == 1.0
    results.close()


def test_closing_ends_the_threads():
    before = set(threading.enumerate())
    results = ReadAhead(str, itertools.count(), 3, 5)
    next(results)
    assert len(set(threading.enumerate()) - before) == 3
    results.close()
    results.close()
    assert set(threading.enumerate()) <= before
