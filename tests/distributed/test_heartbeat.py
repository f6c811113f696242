"""Heartbeats between ranks that are threads of this process."""

import threading
import time

import pytest

from hvdgan.distributed.liveness import heartbeat
from thread_ranks import Threads


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_ends_nothing(tmp_path, capsys, monkeypatch, hours):
    now, jumped = time.time, threading.Event()
    monkeypatch.setattr(time, "time", lambda: now() + 3600 * hours * jumped.is_set())

    def work(peers):
        with heartbeat.start(peers.rank, peers.gather, 1.0, tmp_path, stall_seconds=10.0) as heart:
            peers.gather(None, "both are here")
            jumped.set()
            assert heart.explanation(2.0) is None

    assert Threads().run(work) == [None, None]
    assert capsys.readouterr().err == ""
