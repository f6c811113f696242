"""The membership of this process in an elastic run, whose ranks come and go as horovodrun's driver decides."""

from typing import Any

import numpy as np

from hvdgan.distributed import backend
from hvdgan.distributed.joining import join_elastic
from hvdgan.distributed.ranks import Ranks


class Membership:
    """Joins the ranks, and again after each change; use it in a `with` statement.

    It replaces horovod.common.elastic.run_fn, which differs in three ways: it decides which errors mean a lost peer, it
    restores the state from rank 0 even if that rank is new, and it forgets a notice that arrives during a rendezvous.
    """

    def __init__(self, slice_unit: int, *, share_gpu: bool = False) -> None:
        self.ranks = Ranks()
        self._slice_unit = slice_unit
        self._share_gpu = share_gpu
        self._joined = False
        self._noticed = False

    def __enter__(self) -> "Membership":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._joined:
            backend.host_notices().remove_listener(self)

    def join(self) -> Ranks:
        """Join the ranks for the first time, or join the remaining and the new ones after a change.

        Raises:
            RunError: this process is no longer one of the ranks.
        """
        self._noticed = False
        self.ranks = join_elastic(again=self._joined, slice_unit=self._slice_unit, share_gpu=self._share_gpu)
        if not self._joined:
            notices = backend.host_notices()
            notices.init()
            notices.register_listener(self)
            self._joined = True
        return self.ranks

    def on_hosts_updated(self, timestamp: int, result: Any) -> None:
        """Record a notice; a thread of Horovod's calls it, only on the rank that the driver knows as the first."""
        self._noticed = True

    def hosts_changed(self) -> bool:
        """Whether any rank has received a notice that hosts come or go; every rank calls it."""
        return bool(self.ranks.stack(np.array([self._noticed], np.float32)).any())
