"""Connections between monitors: strangers, broken connections, ranks that cannot be reached, full tables of files."""

import contextlib
import socket
import threading

import pytest

from hvdgan.cli.hosts import listen
from hvdgan.distributed.liveness.connections import ALIVE, ENDED, Connection
from monitors import (
    SECONDS,
    TOKEN,
    children,
    group_of,
    member_monitor,
    root_monitor,
    wait_until,
    wait_until_heard,
)


@pytest.fixture
def start_child():
    with children() as start:
        yield start


class Proxy:
    """Forwards each connection to a port, until cut() breaks all that are open."""

    def __init__(self, port):
        self.accepted = 0
        self._listener, self._port, self._pairs = listen("127.0.0.1"), port, []
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        for pair in self._pairs:
            for each in pair:
                with contextlib.suppress(OSError):  # after the first end the other may be closed already
                    each.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def _accept(self):
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._port))
            self._pairs.append((near, far))
            self.accepted += 1
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    @staticmethod
    def _forward(source, target):
        try:
            while data := source.recv(4096):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has been cut


@pytest.mark.parametrize("sent", [b"\1" * 16 + b"g\0\0\0\1", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"])
def test_a_stranger_without_the_token_is_hung_up_on_and_not_believed(start_child, sent):
    root, noted, group = root_monitor(2, 1)
    child, _ = start_child(1, 2, group.port, 1)
    wait_until_heard(root, 1)
    with socket.create_connection(("127.0.0.1", group.port), timeout=SECONDS) as stranger:
        stranger.sendall(sent)
        assert stranger.recv(100) == b""
    child.kill()
    assert noted.ends.get(timeout=SECONDS) == (ENDED, 1)


def test_a_broken_connection_between_healthy_ranks_is_made_again():
    root, noted, group = root_monitor(3, 5)
    proxy = Proxy(group.port)
    other, others_noted = member_monitor(1, group_of(3, proxy.port, 5))
    third, _ = member_monitor(2, group)
    wait_until_heard(root, 1, 2)
    assert proxy.accepted == 1
    proxy.cut()
    ended = "rank 1 (host node1, pid 4243) has ended without reporting an error"
    assert noted.said.get(timeout=SECONDS) == ended == third.explanation(SECONDS)
    wait_until(lambda: root.explanation(0) is None, "a second connection")
    assert proxy.accepted == 2
    wait_until(lambda: third.explanation(0) is None, "the news that rank 1 is alive")
    third.stop()
    other.stop()
    root.stop()
    assert noted.ends.empty() and others_noted.ends.empty()


def given_up(rank, group):
    """A connection that its rank has closed before rank 0 accepted it."""
    connection = socket.create_connection(("127.0.0.1", group.port), timeout=SECONDS)
    Connection(connection, TOKEN).send(ALIVE, rank)
    connection.close()


def test_a_connection_that_its_rank_gave_up_for_a_newer_one_is_no_death():
    """Rank 0 was at its limit of open files for longer than a rank waits for its answer."""
    root, noted, group = root_monitor(3, 4, start=False)
    for _ in range(3):
        given_up(1, group)
    other, others_noted = member_monitor(1, group)
    third, _ = member_monitor(2, group)
    root.start()
    wait_until_heard(other, 0)
    wait_until_heard(root, 1, 2)
    assert root.explanation(2.5) is third.explanation(0) is None  # longer than the grace period, half of 4 s
    third.stop()
    other.stop()
    root.stop()
    assert noted.ends.empty() and noted.said.empty() and others_noted.said.empty()


def test_a_rank_that_died_before_rank_0_accepted_its_connection_is_found_dead():
    root, noted, group = root_monitor(2, 1, start=False)
    given_up(1, group)
    root.start()
    assert noted.ends.get(timeout=SECONDS) == (ENDED, 1)


def test_ranks_that_cannot_reach_rank_0_are_named_and_the_run_continues():
    root, noted, group = root_monitor(3, 0.5)
    other, _ = member_monitor(1, group)
    unheard = (
        f"no heartbeat at 127.0.0.1, port {group.port} from rank 2 (host node2, pid 4244) (does a firewall block it?); "
        "the run continues"
    )
    assert noted.said.get(timeout=SECONDS).startswith(unheard)
    other.stop()
    root.stop()
    assert noted.ends.empty()


def test_a_rank_that_cannot_reach_rank_0_gives_up_in_silence():
    closed = listen("127.0.0.1")
    member, noted = member_monitor(1, group_of(2, closed.getsockname()[1], 0.5))
    closed.close()
    assert member.join(SECONDS) and noted.ends.empty() and noted.said.empty()
    member.stop()


def test_rank_0_at_the_limit_of_open_files_says_so_once_and_waits(start_child):
    work = """
import resource
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
print("full", flush=True)
sys.stdin.readline()
used = time.process_time()
time.sleep(2.5)
print("used", time.process_time() - used, flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, limit)
sys.stdin.readline()
print("heard", monitor.last_heard(1) is not None, flush=True)
"""
    child, port = start_child(0, 2, 0, 60, work)
    assert child.stdout.readline() == "full\n"
    member, noted = member_monitor(1, group_of(2, port, 60))
    assert "cannot take the heartbeat of another rank: Too many open files" in child.stdout.readline()
    print(file=child.stdin, flush=True)
    # In this time it tries twice more. A listener that were not ignored would wake its thread again and again.
    name, used = child.stdout.readline().split()
    assert name == "used" and float(used) < 0.2
    wait_until_heard(member, 0)
    print(file=child.stdin, flush=True)
    assert child.stdout.readline() == "heard True\n"
    member.stop()
    assert noted.ends.empty()
