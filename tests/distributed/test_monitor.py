"""Monitors find dead and frozen ranks and accuse no others: in-process ranks and processes, without Horovod.

Modules: distributed.liveness.lost_ranks.
"""

import contextlib
import signal
import socket
import threading
import time

import pytest
import zmq

from hvdgan.distributed.liveness.activity import Activity, Peer, Pulse, stragglers
from hvdgan.distributed.liveness.heartbeat import Monitor, caller, ip_of, listen
from hvdgan.distributed.liveness.lost_ranks import ENDED, FAILED, SILENT
from monitors import SECONDS, Noted, children, group_of, monitor_of, stop, wait_until, wait_until_heard

STALL = 600


@pytest.fixture
def start_child():
    with children() as start:
        yield start


@pytest.fixture
def three(start_child):
    """Ranks 0 and 1 of this process and rank 2, a process of its own; a loss after a second of silence."""
    place, noted, root = monitor_of(0, 3, 1)
    _, others_noted, other = monitor_of(1, 3, 1, *place)
    child, _ = start_child(2, 3, 1, *place)
    wait_until_heard(root, 1, 2)
    return root, noted, other, others_noted, child


def test_a_frozen_rank_is_named_to_all(three):
    _, noted, other, others_noted, child = three
    child.send_signal(signal.SIGSTOP)
    assert noted.ends.get(timeout=SECONDS) == others_noted.ends.get(timeout=SECONDS) == (SILENT, 2)
    assert (
        other.explanation(0) == "rank 2 (host node2, pid 4244) has been silent for 1 s: it is dead, frozen or cut off"
    )
    assert noted.said.empty() and others_noted.said.empty()


def test_a_killed_rank_is_named_at_once_and_found_dead_when_it_does_not_come_back(three):
    root, noted, other, others_noted, child = three
    child.kill()
    killed = time.monotonic()
    ended = "rank 2 (host node2, pid 4244) has ended without reporting an error"
    assert root.explanation(SECONDS) == other.explanation(SECONDS) == noted.said.get(timeout=SECONDS) == ended
    assert time.monotonic() - killed < 0.4  # the grace to connect again is half of the second of silence
    assert noted.ends.get(timeout=SECONDS) == others_noted.ends.get(timeout=SECONDS) == (ENDED, 2)
    assert others_noted.said.empty()


def test_a_rank_that_has_left_is_not_missed(three):
    _, noted, leaving, leavings_noted, child = three
    stop(leaving)
    child.send_signal(signal.SIGSTOP)
    # Rank 2 falls silent after rank 1: if rank 1 were missed, it would be found before.
    assert noted.ends.get(timeout=SECONDS) == (SILENT, 2)
    assert noted.ends.empty() and noted.said.empty() and leavings_noted.ends.empty()


def two(seconds=0.5):
    place, noted, root = monitor_of(0, 2, seconds)
    _, others_noted, other = monitor_of(1, 2, seconds, *place)
    wait_until_heard(root, 1)
    return root, noted, other, others_noted


def test_rank_0_may_leave_first():
    root, noted, other, others_noted = two()
    stop(root)
    with other.activity.at("a meeting point"):
        other.activity.wait_for_all()  # until its thread has ended
    stop(other)
    assert all(each.empty() for each in (noted.ends, noted.said, others_noted.ends, others_noted.said))


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_says_so(failing):
    root, noted, other, others_noted = two()
    wait_until_heard(other, 0)
    stop((root, other)[failing], failed=True)
    left, lefts_noted = ((other, others_noted), (root, noted))[failing]
    named = f"rank {failing} (host node{failing}, pid {4242 + failing}) has failed and reported its error"
    assert left.explanation(SECONDS) == named and left.has_failed()
    assert lefts_noted.ends.get(timeout=SECONDS) == (FAILED, failing)


@pytest.mark.parametrize(("signal_number", "kind"), [(signal.SIGSTOP, SILENT), (signal.SIGKILL, ENDED)])
def test_rank_0_is_missed_too(start_child, signal_number, kind):
    child, place = start_child(0, 2, 1)
    _, noted, member = monitor_of(1, 2, 1, *place)
    wait_until_heard(member, 0)
    child.send_signal(signal_number)
    assert noted.ends.get(timeout=SECONDS) == (kind, 0)
    assert noted.said.empty() == (kind == SILENT)


def test_a_busy_main_thread_is_no_death(start_child):
    """Python code that never waits, for three times the silence after which a rank counts as dead."""
    place, noted, root = monitor_of(0, 2, 1)
    work = "end = time.monotonic() + 3\nwhile time.monotonic() < end: pass"
    child, _ = start_child(1, 2, 1, *place, work=work)
    assert child.wait(timeout=SECONDS) == 0 and child.stdout.read() == ""
    stop(root)
    assert noted.ends.empty() and noted.said.empty()


def test_rank_0_that_was_frozen_itself_accuses_nobody(start_child):
    """It does not count its own pause as the others' silence; one of them was frozen with it, as on a laptop."""
    child, place = start_child(0, 3, 1)
    other, _ = start_child(2, 3, SECONDS, *place)
    _, noted, member = monitor_of(1, 3, SECONDS, *place)
    wait_until_heard(member, 0)
    threading.Event().wait(1)  # until it has heard of the other, too
    for each in (child, other):
        each.send_signal(signal.SIGSTOP)
    threading.Event().wait(2)
    heard = member.last_heard(0)
    child.send_signal(signal.SIGCONT)
    wait_until_heard(member, 0, after=heard)
    threading.Event().wait(0.4)
    other.send_signal(signal.SIGCONT)
    threading.Event().wait(0.4)
    stdout, _ = child.communicate("")
    assert child.returncode == 0 and stdout == ""
    stop(member)
    assert noted.ends.empty() and noted.said.empty()


class Proxy:
    """Forwards each connection to a port, until cut() breaks all that are open; new ones wait for `works`."""

    def __init__(self, endpoint):
        self.accepted, self.works = 0, threading.Event()
        self.works.set()
        self._listener, self._pairs = socket.create_server(("127.0.0.1", 0)), []
        self._target = "127.0.0.1", int(endpoint.rpartition(":")[2])
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        self.works.clear()
        for pair in self._pairs:
            for each in pair:
                with contextlib.suppress(OSError):  # after the first end the other may be closed already
                    each.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def _accept(self):
        while True:
            near, _ = self._listener.accept()
            self.works.wait()
            far = socket.create_connection(self._target)
            self._pairs.append((near, far))
            self.accepted += 1
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    @staticmethod
    def _forward(source, target):
        with contextlib.suppress(OSError):  # it has been cut
            while data := source.recv(4096):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


def test_a_broken_connection_between_healthy_ranks_is_made_again():
    place, noted, root = monitor_of(0, 3, 5)
    proxy = Proxy(place[0])
    _, others_noted, other = monitor_of(1, 3, 5, proxy.endpoint, place[1])
    _, _, third = monitor_of(2, 3, 5, *place)
    wait_until_heard(root, 1, 2)
    proxy.cut()
    ended = "rank 1 (host node1, pid 4243) has ended without reporting an error"
    assert noted.said.get(timeout=SECONDS) == ended == third.explanation(SECONDS)
    threading.Event().wait(1.5)  # longer than a heartbeat takes, shorter than half of the silence
    proxy.works.set()
    wait_until(lambda: root.explanation(0) is third.explanation(0) is None, "the news that rank 1 is alive")
    assert proxy.accepted == 2
    stop(third, other, root)
    assert noted.ends.empty() and others_noted.ends.empty()


def meet(root, other, late=0.0):
    """Let two ranks meet, of which the other is late by some seconds; the first waits, and continues at once."""
    with root.activity.at("a meeting point"):
        waiting = threading.Thread(target=root.activity.wait_for_all)
        waiting.start()
        waiting.join(late)
        assert waiting.is_alive() or not late
        with other.activity.at("a meeting point"):
            other.activity.wait_for_all()
        waiting.join(0.5)
        assert not waiting.is_alive()


def test_a_rank_takes_the_address_of_rank_0_that_answers():
    """Two do, and a stranger listens at the third."""
    socket_of_root, endpoints, key = listen(is_local=False)
    port = endpoints[0].rpartition(":")[2]
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        endpoints = [f"tcp://{each}" for each in (f"127.0.0.1:{stranger.getsockname()[1]}", f"127.0.0.1:{port}")]
        endpoints += [f"tcp://[::1]:{port}"] * socket.has_dualstack_ipv6()
        watches = []
        for rank, its in enumerate((socket_of_root, caller(key))):
            noted = Noted(rank, group_of(2, SECONDS), lambda *words, flush: None)
            watches.append((noted, Monitor(noted, Activity(), its, endpoints).__enter__()))
        (noted, root), (others_noted, other) = watches
        wait_until_heard(root, 1)
        began = time.monotonic()
        for _ in range(6):  # a report that went to another address would be missed until the next heartbeat
            meet(root, other)
        assert time.monotonic() - began < 1
        stop(other, root)
    assert noted.ends.empty() and noted.said.empty() and others_noted.ends.empty() and others_noted.said.empty()


@pytest.mark.parametrize("key", [None, "another"])
def test_a_stranger_without_the_key_is_not_believed(three, key):
    """Nor is one that does not speak ZeroMQ's protocol."""
    root, noted, _, _, child = three
    (endpoint,) = root.endpoints
    address = "127.0.0.1", int(endpoint.rpartition(":")[2])
    with socket.create_connection(address) as stranger, zmq.Context() as context:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        with context.socket(zmq.DEALER) as other:
            other.linger = 0
            if key:
                other.curve_publickey, other.curve_secretkey = zmq.curve_keypair()
                other.curve_serverkey, _ = zmq.curve_keypair()
            other.connect(endpoint)
            for _ in range(20):
                with contextlib.suppress(zmq.Again):
                    other.send(b'[2, "goodbye", 0, 0, ""]', zmq.NOBLOCK)
                threading.Event().wait(0.02)
            child.kill()
            assert noted.ends.get(timeout=SECONDS) == (ENDED, 2)
            assert not other.poll(0)


def test_ranks_that_cannot_reach_rank_0_are_named_and_the_run_continues():
    place, noted, root = monitor_of(0, 3, 0.5)
    _, _, other = monitor_of(1, 3, 0.5, *place)
    assert noted.said.get(timeout=SECONDS).startswith(
        f"no heartbeat at {place[0]} from rank 2 (host node2, pid 4244) (does a firewall block it?); the run "
    )
    stop(other, root)
    assert noted.ends.empty()


def test_a_rank_that_cannot_reach_rank_0_waits_for_nobody_and_is_silent():
    """Rank 0 names it."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        place = f"tcp://127.0.0.1:{closed.getsockname()[1]}", zmq.curve_keypair()[0].decode()
    _, noted, member = monitor_of(1, 2, 0.5, *place)
    with member.activity.at("a meeting point"):
        member.activity.wait_for_all()
    stop(member)
    assert noted.ends.empty() and noted.said.empty()


def test_ranks_wait_for_each_other_at_a_meeting_point():
    root, _, other, _ = two(SECONDS)
    meet(root, other, late=1.5)
    stop(other, root)


def test_rank_0_at_the_limit_of_open_files_takes_new_connections_and_keeps_the_old_ones(start_child):
    work = """
import contextlib, os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
sys.stdin.readline()
files = []
with contextlib.suppress(OSError):
    while True:
        files.append(os.open("/dev/null", os.O_RDONLY))
print("full", flush=True)
while monitor.last_heard(2) == 0:
    time.sleep(0.05)
print("heard", flush=True)
sys.stdin.readline()
"""
    child, place = start_child(0, 3, 60, work=work)
    _, noted, first = monitor_of(1, 3, 60, *place)
    wait_until_heard(first, 0)
    print(file=child.stdin, flush=True)
    assert child.stdout.readline() == "full\n"
    _, _, second = monitor_of(2, 3, 60, *place)
    assert child.stdout.readline() == "heard\n"
    before = first.last_heard(0)
    wait_until_heard(first, 0, after=before)
    assert noted.ends.empty() and noted.said.empty()
    child.stdin.write("\n")
    child.stdin.flush()
    stop(first, second)


def test_an_address_is_the_same_after_a_reconnection():
    """ZeroMQ writes one of IPv4 in another way when it has connected again; all other addresses are given up then."""
    assert ip_of("tcp://[::ffff:10.0.0.1]:80") == ip_of("tcp://10.0.0.1:80")
    others = ("tcp://10.0.0.2:80", "tcp://10.0.0.1:81", "tcp://[::1]:80")
    assert not {ip_of("tcp://10.0.0.1:80")} & set(map(ip_of, others))
    assert ip_of("tcp://[fe80:0:0::1%eth0]:80") == ip_of("tcp://[fe80::1]:80")


def pair(*, behind):
    """Two ranks of which one fell behind at time 0; a function that says what has been found at a later time."""
    peers = {0: Peer(0), 1: Peer(0)}
    peers[1 - behind].add(Pulse(1, 1), 0)
    return peers, lambda now: stragglers(peers, now, STALL)


def test_a_rank_that_is_behind_and_moves_is_no_straggler_until_it_stands():
    peers, found = pair(behind=0)
    for now in range(1, 2000):
        peers[0].add(Pulse(0, now), now)
        assert found(now) == []
    assert found(1999 + STALL) == [] and found(2000 + STALL) == [0]


def test_the_time_behind_counts_from_when_the_rank_fell_behind():
    """Until then it has waited for the long work of the other."""
    peers, found = pair(behind=1)
    for now in range(1, 700):
        peers[1].add(Pulse(0, now), now)
        assert found(now) == []
    peers[1].add(Pulse(2, 1000), 700)
    assert found(700.5) == found(700 + STALL) == [] and found(701 + STALL) == [0]


def test_a_pause_of_rank_0_does_not_count_as_time_behind():
    peers, found = pair(behind=0)
    assert found(1) == []
    for peer in peers.values():
        peer.excuse(1000)
    assert found(1001 + STALL) == [] and found(1002 + STALL) == [0]
