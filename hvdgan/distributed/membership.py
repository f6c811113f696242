"""This process among ranks that come and go, as horovodrun's elastic driver tells it; imports Horovod's notices."""

from typing import Any

import numpy as np
from horovod.common.elastic import notification_manager

from hvdgan.distributed.ranks import Ranks, join_elastic


class Membership:
    """Joins the ranks, and again after each change; to be left by `with`.

    It does what horovod.common.elastic.run_fn does around a function, but for three things: what counts as a lost
    peer is for the caller to say, the state is always brought from a rank that has it, and a notice that arrives while
    the ranks find each other is not forgotten.

    Args:
        uneven_by: samples by which the ranks' slices may differ: any number of ranks must do for any global batch.
    """

    def __init__(self, uneven_by: int) -> None:
        self.ranks = Ranks()
        self._uneven_by = uneven_by
        self._joined = False
        self._noticed = False

    def __enter__(self) -> "Membership":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._joined:
            notification_manager.remove_listener(self)

    def join(self) -> Ranks:
        """Become one of the ranks, or one of those that remain and those that are new.

        Raises:
            RunError: this process is no longer one of them.
        """
        self._noticed = False
        self.ranks = join_elastic(again=self._joined, uneven_by=self._uneven_by)
        if not self._joined:
            notification_manager.init()
            notification_manager.register_listener(self)
            self._joined = True
        return self.ranks

    def on_hosts_updated(self, timestamp: int, result: Any) -> None:
        """Called by a thread of Horovod's, on the rank that the driver knows as the first."""
        self._noticed = True

    def hosts_changed(self) -> bool:
        """Whether any rank has had a notice of hosts that come or go; every rank calls it."""
        return bool(self.ranks.stack(np.array([self._noticed], np.float32)).any())
