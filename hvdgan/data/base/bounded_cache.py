"""Keeps the arrays used last, up to a number of bytes, for all threads of a process."""

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable

import numpy as np


class BoundedCache:
    """Arrays by key; those used longest ago make room for new ones. Arrays are shared, so nobody may change one.

    Args:
        most_bytes: bytes of all arrays together, at most; a larger array is not kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.clear()
        # A process that forks while another of its threads holds the lock would leave it locked for ever.
        os.register_at_fork(after_in_child=self.clear)

    def clear(self) -> None:
        """Forget everything."""
        self._lock = threading.Lock()
        self._arrays: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self.bytes = 0

    def get(self, key: Hashable) -> np.ndarray | None:
        with self._lock:
            if key in self._arrays:
                self._arrays.move_to_end(key)
            return self._arrays.get(key)

    def put(self, key: Hashable, array: np.ndarray) -> None:
        with self._lock:
            if key in self._arrays or array.nbytes > self._most_bytes:
                return
            self._arrays[key] = array
            self.bytes += array.nbytes
            while self.bytes > self._most_bytes:
                self.bytes -= self._arrays.popitem(last=False)[1].nbytes
