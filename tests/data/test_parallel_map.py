"""Threads work on many items, a limited number at a time."""

import gc
import threading
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from hvdgan.data.base.parallel_map import parallel_map


@pytest.fixture
def submitted(monkeypatch):
    """Weak references to what has been handed to threads, and how many of them lived at once."""
    alive: weakref.WeakSet = weakref.WeakSet()
    seen = {"all": 0, "most": 0}
    submit = ThreadPoolExecutor.submit

    def counting(self, *arguments, **more):
        future = submit(self, *arguments, **more)
        alive.add(future)
        seen["all"] += 1
        seen["most"] = max(seen["most"], len(alive))
        return future

    monkeypatch.setattr(ThreadPoolExecutor, "submit", counting)
    return seen


@pytest.mark.parametrize(("count", "together"), [(0, 7), (1, 7), (10_000, 7), (10_000, 1), (100, 1000)])
def test_results_are_in_order_and_few_wait(submitted, count, together):
    assert list(parallel_map(str, range(count), 4, together=together)) == [str(number) for number in range(count)]
    assert submitted["most"] <= 3 * 4


def test_all_threads_work_on_few_items():
    """Each waits for the others: with less than four at work it would not end."""
    barrier = threading.Barrier(4)
    assert list(parallel_map(lambda item: barrier.wait(60) * 0 + item, range(4), 4, together=256)) == [0, 1, 2, 3]


def test_after_an_error_nothing_new_is_begun(submitted):
    begun = []

    def fail(item):
        begun.append(item)
        if item == 5:
            raise ValueError("five")
        return item

    with pytest.raises(ValueError, match="five"):
        list(parallel_map(fail, range(100_000), 2))
    assert len(begun) < 100


def test_what_waits_takes_no_memory_for_each_item():
    gc.collect()
    tracemalloc.start()
    try:
        for _ in parallel_map(abs, range(50_000), 16, together=256):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000 * 40
