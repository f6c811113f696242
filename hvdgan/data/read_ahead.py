"""Calls a function for items without end, on threads that are a limited number of items ahead of the caller."""

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class ReadAhead(Generic[Item, Result]):
    """Iterator over the results, in the order of the items.

    Its threads are daemons: those of ThreadPoolExecutor would finish all that is under way before Python exits.

    Args:
        function: function of one item; several threads call it at once.
        items: items without end.
        threads: number of threads, >= 1.
        ahead: results that are computed or wait for the caller, at most, >= 1.
    """

    def __init__(self, function: Callable[[Item], Result], items: Iterator[Item], threads: int, ahead: int) -> None:
        self._function, self._items, self._ahead = function, items, ahead
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._has_result = threading.Condition(self._lock)
        self._ready: dict[int, tuple[Result] | Exception] = {}
        self._begun = self._taken = 0
        self._is_closed = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(min(threads, ahead))]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> "ReadAhead[Item, Result]":
        return self

    def __next__(self) -> Result:
        """The next result.

        Raises:
            Exception: the function's exception for this item.
        """
        with self._lock:
            self._has_result.wait_for(lambda: self._taken in self._ready)
            result = self._ready.pop(self._taken)
            self._taken += 1
            self._has_room.notify()
        if isinstance(result, Exception):
            raise result
        return result[0]

    def close(self) -> None:
        """Begin nothing new, and wait for the threads; may be called twice, and nothing may be taken afterwards."""
        with self._lock:
            self._is_closed = True
            self._has_room.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():  # garbage may be collected by any thread
                thread.join()
        self._ready.clear()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._has_room.wait_for(lambda: self._is_closed or self._begun - self._taken < self._ahead)
                if self._is_closed:
                    return
                number, item = self._begun, next(self._items)
                self._begun += 1
            result: tuple[Result] | Exception
            try:
                result = (self._function(item),)
            except Exception as error:
                result = error
            with self._lock:
                self._ready[number] = result
                self._has_result.notify()
            del result  # the caller alone decides how long its memory is kept
