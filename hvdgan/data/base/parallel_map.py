"""Calls a function for many items on several threads, in bounded memory."""

import collections
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 2
"""portions per thread that are in progress or wait for the caller"""
_PORTIONS = 4
"""smallest number of portions per thread, if there are enough items: one thread may be slower than the others"""


def parallel_map(
    function: Callable[[Item], Result], items: Sequence[Item], threads: int, *, together: int = 1
) -> Iterator[Result]:
    """The results in the order of the items.

    ThreadPoolExecutor.map would allocate more than a kilobyte per item before it returns the first result.

    Args:
        function: function of one item; several threads call it at once.
        items: any number of items.
        threads: number of threads.
        together: largest number of items that a thread takes at a time; larger portions save time if an item takes
            microseconds.

    Raises:
        Exception: the function's exception; no further items are begun.
    """
    together = max(1, min(together, -(-len(items) // (_PORTIONS * threads))))

    def portion(first: int) -> list[Result]:
        return [function(item) for item in items[first : first + together]]

    under_way: collections.deque[Future[list[Result]]] = collections.deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for first in range(0, len(items), together):
                if len(under_way) == AHEAD * threads:
                    yield from under_way.popleft().result()
                under_way.append(pool.submit(portion, first))
            while under_way:
                yield from under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
