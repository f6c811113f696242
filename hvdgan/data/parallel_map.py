"""A function of many items by threads, which hold the work for few of them at a time."""

import collections
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2
"""portions for each thread that are under way or wait to be taken"""
_SHARES = 4
"""portions at least for each thread, where there are as many items: one thread may be slower than the others"""


def parallel_map(
    function: Callable[[Item], Result], items: Sequence[Item], threads: int, *, together: int = 1
) -> Iterator[Result]:
    """The results in the order of the items.

    ThreadPoolExecutor.map makes an object of more than a kilobyte for each item before the first result is taken.

    Args:
        function: called by several threads at once.
        items: may be many.
        threads: that call it.
        together: items at most that a thread takes at a time; more cost less, where one takes microseconds.

    Raises:
        Exception: what the function raises; nothing new is begun then.
    """
    together = max(1, min(together, -(-len(items) // (_SHARES * threads))))

    def portion(first: int) -> list[Result]:
        return [function(item) for item in items[first : first + together]]

    under_way: collections.deque[Future[list[Result]]] = collections.deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for first in range(0, len(items), together):
                if len(under_way) == _AHEAD * threads:
                    yield from under_way.popleft().result()
                under_way.append(pool.submit(portion, first))
            while under_way:
                yield from under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
