"""The start and the end of heartbeats, between ranks that are threads of this process."""

import threading
import time

import pytest

from hvdgan.distributed.liveness import heartbeat
from hvdgan.distributed.liveness.activity import Activity
from thread_ranks import Threads


def heartbeats():
    """The number of heartbeat threads in this process."""
    return sum(thread.name == "heartbeat" for thread in threading.enumerate())


@pytest.mark.parametrize("seconds", [(5, 5), (0, 5), (5, 0)])
def test_ranks_find_each_other_and_leave_without_a_word(tmp_path, capsys, seconds):
    """Also with different settings: rank 0's hold for all."""
    counts = []

    def work(peers):
        activity = Activity()
        with heartbeat.start(peers.rank, peers.gather, seconds[peers.rank], tmp_path, activity=activity):
            with activity.at("both"):
                activity.wait_for_all()  # else rank 0 would miss a rank that leaves before its first heartbeat
            peers.gather(None, "both are here")
            counts.append(heartbeats())
            peers.gather(None, "counted")

    assert Threads().run(work) == [None, None]
    assert counts == [2 if seconds[0] else 0] * 2
    assert capsys.readouterr().err == "" and list(tmp_path.iterdir()) == []


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
