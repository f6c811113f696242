"""Monitors find dead and frozen ranks and accuse no others: in-process ranks and processes, without Horovod.
Modules: distributed.liveness.heartbeat, distributed.liveness.lost_ranks"""

import signal
import socket
import threading

import pytest
import zmq

from hvdgan.distributed.liveness.lost_ranks import ENDED, FAILED, SILENT
from monitors import SECONDS, children, monitor_of, stop, wait_until_heard

SILENCE = 3
"""seconds that count as silence: heartbeats come every 0.6 s, also beside whatever keeps this machine busy"""


@pytest.fixture
def start_child():
    with children() as start:
        yield start


@pytest.mark.parametrize(("signal_number", "kind"), [(signal.SIGSTOP, SILENT), (signal.SIGKILL, ENDED)])
def test_rank_0_is_missed_too(start_child, signal_number, kind):
    child, place = start_child(0, 2, SILENCE)
    _, noted, member = monitor_of(1, 2, SILENCE, *place)
    wait_until_heard(member, 0)
    child.send_signal(signal_number)
    assert noted.ends.get(timeout=SECONDS) == (kind, 0)
    assert noted.said.empty() == (kind == SILENT)


def test_a_stranger_without_the_key_is_not_believed(start_child):
    """Nor is one that does not speak ZeroMQ's protocol. A rank that leaves in order is not missed."""
    place, noted, root = monitor_of(0, 4, SILENCE)
    child, _ = start_child(2, 4, SILENCE, *place)
    others = [monitor_of(rank, 4, SILENCE, *place)[2] for rank in (1, 3)]
    wait_until_heard(root, 1, 2, 3)
    stop(others[1])
    (endpoint,) = root.endpoints
    address = "127.0.0.1", int(endpoint.rpartition(":")[2])
    with socket.create_connection(address) as stranger, zmq.Context() as context, context.socket(zmq.DEALER) as other:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        other.linger = 0
        # The handshake ends the connection, or would let the message through.
        with other.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED) as events:
            other.connect(endpoint)
            other.send(b'[2, "goodbye", 0, 0, ""]')
            assert events.poll(1000 * SECONDS)
        child.kill()
        assert noted.ends.get(timeout=SECONDS) == (ENDED, 2)


def test_a_rank_that_leaves_with_an_error_is_named_as_failed():
    place, noted, root = monitor_of(0, 2, SILENCE)
    _, _, member = monitor_of(1, 2, SILENCE, *place)
    wait_until_heard(root, 1)
    member.__exit__(RuntimeError)
    assert root.explanation(SECONDS) == "rank 1 (host node1, pid 4243) has failed and reported its error"
    assert root.has_failed() and noted.ends.get(timeout=SECONDS) == (FAILED, 1)
    stop(root)


def test_ranks_that_cannot_reach_rank_0_are_named_and_the_run_continues():
    place, noted, root = monitor_of(0, 3, SILENCE)
    _, _, other = monitor_of(1, 3, SILENCE, *place)
    assert noted.said.get(timeout=SECONDS).startswith(
        f"no heartbeat at {place[0]} from rank 2 (host node2, pid 4244) (does a firewall block it?); the run "
    )
    stop(other, root)
    assert noted.ends.empty()


def test_nobody_waits_for_a_rank_that_has_left():
    place, noted, root = monitor_of(0, 3, SECONDS)
    others = [monitor_of(rank, 3, SECONDS, *place)[2] for rank in (1, 2)]
    for monitor, reached in [(root, 2), (others[0], 2), (others[1], 1)]:
        for _ in range(reached):
            with monitor.activity.at("a collective"):
                pass
    root.activity.wait(1)
    stop(others[1])
    waiting = threading.Thread(target=root.activity.wait_for_all, daemon=True)
    waiting.start()
    waiting.join(SECONDS)
    assert not waiting.is_alive() and noted.ends.empty()
    stop(others[0], root)
