"""Who is found dead, who is not: ranks of this process and of plain others, over localhost, without Horovod."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hvdgan.cli import hosts
from hvdgan.cli.errors import UserError
from hvdgan.distributed.liveness import heartbeat
from hvdgan.distributed.liveness.lines import ALIVE, Line
from hvdgan.distributed.liveness.peers import ENDED, FAILED, SILENT, Hub, Meeting, Member, Spoke

TOKEN = bytes(range(16))
SECONDS = 30  # far more than anything here takes
# A rank in a process of its own: what its main thread does stands in the place of %s.
CHILD = """
import sys, time
from hvdgan.distributed.liveness.peers import Hub, Meeting, Member, Spoke
from hvdgan.cli.hosts import listen
class Words:
    def say(self, text): print(text, flush=True)
    def end(self, kind, rank): print("end", kind.decode(), rank, flush=True)
rank, size, port, seconds = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
members = [Member(rank, "h", (1, "", 1), "") for rank in range(size)]
listener = None if rank else listen("127.0.0.1")
meeting = Meeting(members, ["127.0.0.1"], port, bytes(range(16)), seconds)
watch = Spoke(rank, meeting, Words()) if rank else Hub(listener, meeting, Words())
watch.start()
print(port if rank else listener.getsockname()[1], flush=True)
%s
watch.stop()
"""


class Words:
    """Keeps what a watch says and whom it finds dead."""

    def __init__(self):
        self.said, self.ends = queue.Queue(), queue.Queue()

    def say(self, text):
        self.said.put(text)

    def end(self, kind, rank):
        self.ends.put((kind, rank))


@pytest.fixture
def start_child():
    """Starts a rank as a process; returns it and the port it speaks of."""
    children = []

    def start(rank, size, port, seconds, does="sys.stdin.read()"):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD % does, *map(str, (rank, size, port, seconds))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(hosts.__file__).parents[2],
        )
        children.append(child)
        return child, int(child.stdout.readline())

    yield start
    for child in children:
        child.kill()
        child.communicate()


def hub(size, seconds, *, start=True):
    """Rank 0 of so many, its words and its meeting; without start it does not take connections yet."""
    listener, words = hosts.listen("127.0.0.1"), Words()
    members = [Member(rank, f"node{rank}", (4242 + rank, "", 1), "") for rank in range(size)]
    meeting = Meeting(members, ["127.0.0.1"], listener.getsockname()[1], TOKEN, seconds)
    watch = Hub(listener, meeting, words)
    if start:
        watch.start()
    return watch, words, meeting


def spoke(rank, meeting):
    words = Words()
    watch = Spoke(rank, meeting, words)
    watch.start()
    return watch, words


def wait_until_heard(watch, *ranks):
    """A rank that was never heard is not judged, so what a test does to it must come later.

    Without ranks: a spoke's watch, which hears rank 0 alone.
    """
    heard = threading.Event()
    for _ in range(SECONDS * 20):
        if all(watch._peers[rank].heard for rank in ranks) and (ranks or watch._heard):
            return
        heard.wait(0.05)
    pytest.fail(f"{ranks} were not heard")


def test_a_frozen_rank_is_named_to_all(start_child):
    root, words, meeting = hub(3, 1)
    other, others_words = spoke(1, meeting)
    child, _ = start_child(2, 3, meeting.port, 1)
    wait_until_heard(root, 1, 2)
    child.send_signal(signal.SIGSTOP)
    assert words.ends.get(timeout=SECONDS) == (SILENT, 2)
    assert others_words.ends.get(timeout=SECONDS) == (SILENT, 2)
    silent = "rank 2 (host node2, pid 4244) has been silent for 1 s: it is dead, frozen or cut off"
    assert meeting.describe(2, SILENT) == silent and other.opinion(0) == silent
    assert words.said.empty() and others_words.said.empty()


def test_a_killed_rank_is_named_at_once_and_found_dead_when_it_does_not_come_back(start_child):
    root, words, meeting = hub(3, 1)
    other, others_words = spoke(1, meeting)
    child, _ = start_child(2, 3, meeting.port, 1)
    wait_until_heard(root, 1, 2)
    child.kill()
    ended = "rank 2 (host node2, pid 4244) has ended without a word"
    assert root.opinion(SECONDS) == other.opinion(SECONDS) == words.said.get(timeout=SECONDS) == ended
    assert words.ends.get(timeout=SECONDS) == others_words.ends.get(timeout=SECONDS) == (ENDED, 2)
    assert others_words.said.empty()


def test_who_said_goodbye_is_not_missed(start_child):
    root, words, meeting = hub(3, 1)
    leaving, leavings_words = spoke(1, meeting)
    child, _ = start_child(2, 3, meeting.port, 1)
    wait_until_heard(root, 1, 2)
    leaving.stop()
    child.send_signal(signal.SIGSTOP)
    # Rank 2 falls silent after rank 1: by the time it is found, rank 1 would have been.
    assert words.ends.get(timeout=SECONDS) == (SILENT, 2)
    assert words.ends.empty() and words.said.empty() and leavings_words.ends.empty()


def test_rank_0_may_leave_first():
    root, words, meeting = hub(2, 0.5)
    other, others_words = spoke(1, meeting)
    wait_until_heard(root, 1)
    root.stop()
    other._thread.join(SECONDS)
    assert not other._thread.is_alive()
    other.stop()
    assert all(each.empty() for each in (words.ends, words.said, others_words.ends, others_words.said))


def test_a_rank_that_fails_says_so():
    root, words, meeting = hub(2, 0.5)
    other, _ = spoke(1, meeting)
    wait_until_heard(root, 1)
    other.stop(failed=True)
    assert root.opinion(SECONDS) == "rank 1 (host node1, pid 4243) has stopped with an error of its own"
    assert words.ends.get(timeout=SECONDS) == (FAILED, 1) and words.said.empty()


@pytest.mark.parametrize(("signal_number", "kind"), [(signal.SIGSTOP, SILENT), (signal.SIGKILL, ENDED)])
def test_rank_0_is_missed_too(start_child, signal_number, kind):
    child, port = start_child(0, 2, 0, 1)
    members = [Member(rank, "h", (1, "", 1), "") for rank in range(2)]
    watch, words = spoke(1, Meeting(members, ["127.0.0.1"], port, TOKEN, 1))
    for _ in range(SECONDS * 20):
        if watch._heard:
            break
        threading.Event().wait(0.05)
    child.send_signal(signal_number)
    assert words.ends.get(timeout=SECONDS) == (kind, 0)
    assert words.said.empty() == (kind == SILENT)


def test_a_busy_main_thread_is_no_death(start_child):
    """Python code that never waits, for three times the seconds after which silence is death."""
    root, words, meeting = hub(2, 1)
    child, _ = start_child(1, 2, meeting.port, 1, "end = time.monotonic() + 3\nwhile time.monotonic() < end: pass")
    assert child.wait(timeout=SECONDS) == 0 and child.stdout.read() == ""
    root.stop()
    assert words.ends.empty() and words.said.empty()


def test_rank_0_that_was_frozen_itself_accuses_nobody(start_child):
    """It reads what has come meanwhile, and does not take its own pause for the others' silence."""
    child, port = start_child(0, 2, 0, 1)
    members = [Member(rank, "h", (1, "", 1), "") for rank in range(2)]
    watch, words = spoke(1, Meeting(members, ["127.0.0.1"], port, TOKEN, SECONDS))
    for _ in range(SECONDS * 20):
        if watch._heard:
            break
        threading.Event().wait(0.05)
    child.send_signal(signal.SIGSTOP)
    threading.Event().wait(2)
    child.send_signal(signal.SIGCONT)
    heard = watch._heard
    for _ in range(SECONDS * 20):
        if watch._heard > heard:
            break
        threading.Event().wait(0.05)
    stdout, _ = child.communicate("")
    assert child.returncode == 0 and stdout == ""
    watch.stop()
    assert words.ends.empty() and words.said.empty()


@pytest.mark.parametrize("sent", [b"\1" * 16 + b"g\0\0\0\1", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"])
def test_whoever_does_not_know_the_token_is_hung_up_on_and_not_believed(start_child, sent):
    root, words, meeting = hub(2, 1)
    child, _ = start_child(1, 2, meeting.port, 1)
    wait_until_heard(root, 1)
    with socket.create_connection(("127.0.0.1", meeting.port), timeout=SECONDS) as stranger:
        stranger.sendall(sent)
        assert stranger.recv(100) == b""
    child.kill()
    assert words.ends.get(timeout=SECONDS) == (ENDED, 1)


def test_a_broken_connection_between_healthy_ranks_is_made_again():
    root, words, meeting = hub(3, 5)
    other, others_words = spoke(1, meeting)
    third, _ = spoke(2, meeting)
    wait_until_heard(root, 1, 2)
    first = root._peers[1].line
    first.connection.shutdown(socket.SHUT_RDWR)
    for _ in range(SECONDS * 20):
        if root._peers[1].line not in (None, first):
            break
        threading.Event().wait(0.05)
    assert root.opinion(0) is None
    for _ in range(SECONDS * 20):  # the third rank is told of the end, and then that it was none
        if third.opinion(0) is None:
            break
        threading.Event().wait(0.05)
    assert third.opinion(0) is None
    third.stop()
    other.stop()
    root.stop()
    assert words.ends.empty() and others_words.ends.empty()


def given_up(rank, meeting):
    """A connection that its rank has closed before rank 0 took it."""
    connection = socket.create_connection(("127.0.0.1", meeting.port), timeout=SECONDS)
    Line(connection, TOKEN).send(ALIVE, rank)
    connection.close()


def test_a_connection_that_its_rank_gave_up_for_a_newer_one_is_no_death():
    """Rank 0 was at its limit of open files for longer than a rank waits for its answer."""
    root, words, meeting = hub(3, 5, start=False)
    for _ in range(3):
        given_up(1, meeting)
    other, others_words = spoke(1, meeting)
    third, _ = spoke(2, meeting)
    root.start()
    wait_until_heard(other)
    wait_until_heard(root, 1, 2)
    assert root._peers[1].gone is None and root.opinion(0) is third.opinion(0) is None
    third.stop()
    other.stop()
    root.stop()
    assert words.ends.empty() and words.said.empty() and others_words.said.empty()


def test_a_rank_that_died_before_rank_0_took_its_connection_is_found_dead():
    root, words, meeting = hub(2, 1, start=False)
    given_up(1, meeting)
    root.start()
    assert words.ends.get(timeout=SECONDS) == (ENDED, 1)


def test_ranks_that_cannot_reach_rank_0_are_named_and_the_run_goes_on():
    root, words, meeting = hub(3, 0.5)
    other, _ = spoke(1, meeting)
    unheard = (
        f"not heard at 127.0.0.1, port {meeting.port} (a firewall?): rank 2 (host node2, pid 4244); this run goes on"
    )
    assert words.said.get(timeout=SECONDS).startswith(unheard)
    other.stop()
    root.stop()
    assert words.ends.empty()


def test_a_rank_without_a_way_to_rank_0_gives_up_in_silence():
    closed = hosts.listen("127.0.0.1")
    members = [Member(rank, "h", (1, "", 1), "") for rank in range(2)]
    watch, words = spoke(1, Meeting(members, ["127.0.0.1"], closed.getsockname()[1], TOKEN, 0.5))
    closed.close()
    watch._thread.join(SECONDS)
    assert not watch._thread.is_alive() and words.ends.empty() and words.said.empty()
    watch.stop()


def gathering(size):
    """A gather for ranks that are threads of this process."""
    barrier, values = threading.Barrier(size), {}

    def gather_of(rank):
        def gather(value, name):
            values[name, rank] = value
            barrier.wait(SECONDS)
            return [values[name, each] for each in range(size)]

        return gather

    return gather_of


@pytest.mark.parametrize("seconds", [(5, 5), (0, 5), (5, 0)])
def test_ranks_find_each_other_and_leave_without_a_word(tmp_path, capsys, seconds):
    """Also where they are told other seconds: those of rank 0 hold."""
    gather_of, watched, heard = gathering(2), {}, threading.Event()

    def work(rank):
        with heartbeat.start(rank, gather_of(rank), seconds[rank], tmp_path / "log.txt") as heart:
            watched[rank] = heart._watch is not None
            if rank == 0 and heart._watch:
                wait_until_heard(heart._watch, 1)
                heard.set()
            elif heart._watch:
                assert heard.wait(SECONDS)  # one that leaves before it was heard is looked for

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert watched == {0: seconds[0] > 0, 1: seconds[0] > 0}
    assert capsys.readouterr().err == "" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("seconds", "stall", "least"), [(120, 2.9, 3), (5, 1, 3), (1, 0.5, 0.6)])
def test_a_stall_timeout_of_a_few_heartbeats_is_refused_by_all_ranks(tmp_path, seconds, stall, least):
    gather_of, refused = gathering(2), {}

    def work(rank):
        try:
            # What rank 0 is told holds for all.
            stall_seconds = 600 if rank else stall
            heartbeat.start(rank, gather_of(rank), seconds, tmp_path / "log.txt", stall_seconds=stall_seconds)
        except UserError as error:
            refused[rank] = str(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    expected = f"--stall-timeout {stall:g}: expected 0 or at least {least:g} s with --peer-timeout {seconds:g}, since "
    assert sorted(refused) == [0, 1] and all(each.startswith(expected) for each in refused.values())


@pytest.mark.parametrize(("seconds", "stall"), [(120, 3), (1, 0.6), (120, 0), (0, 1)])
def test_a_stall_timeout_of_more_heartbeats_is_taken(tmp_path, seconds, stall):
    gather_of, left = gathering(2), []

    def work(rank):
        with heartbeat.start(rank, gather_of(rank), seconds, tmp_path / "log.txt", stall_seconds=stall):
            left.append(rank)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(left) == [0, 1]


def test_rank_0_at_the_limit_of_open_files_says_so_once_and_waits(start_child):
    does = """
import os, resource, threading
tried, registered, again = [], [], threading.Semaphore(0)
accept, register = watch._accept, watch._selector.register
watch._accept = lambda now: (tried.append(now), accept(now))
def note(source, events):
    if source is watch._listener:
        registered.append(source)
        again.release()
    return register(source, events)
watch._selector.register = note
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True: taken.append(os.dup(0))
except OSError:
    print("full", flush=True)
sys.stdin.readline()
looked = again.acquire(timeout=60) and again.acquire(timeout=60)
print(looked, len(tried) <= 1 + len(registered), flush=True)
for each in taken: os.close(each)
sys.stdin.readline()
print("heard", watch._peers[1].heard is not None, flush=True)
"""
    child, port = start_child(0, 2, 0, 60, does)
    assert child.stdout.readline() == "full\n"
    members = [Member(rank, "h", (1, "", 1), "") for rank in range(2)]
    watch, words = spoke(1, Meeting(members, ["127.0.0.1"], port, TOKEN, 60))
    assert "cannot take the heartbeat of another rank: Too many open files" in child.stdout.readline()
    print(file=child.stdin, flush=True)
    # It has looked away and come back twice, and tried once each time.
    assert child.stdout.readline() == "True True\n"
    wait_until_heard(watch)
    print(file=child.stdin, flush=True)
    assert child.stdout.readline() == "heard True\n"
    watch.stop()
    assert words.ends.empty()


def test_the_limit_of_open_files_is_raised_for_many_ranks():
    code = (
        "import resource; from hvdgan.cli.hosts import allow_open_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 900)); allow_open_files(200)\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0]); allow_open_files(2000)\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    folder = Path(hosts.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    first, second = done.stdout.splitlines()
    assert 712 < int(first) < 800 and second == "900 900", done.stderr


def test_one_rank_watches_nothing():
    with heartbeat.start(0, lambda value, name: [value], 5, None) as heart:
        assert heart.opinion() is None
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_a_process_is_killed_only_if_it_is_still_the_one():
    child = subprocess.Popen(["sleep", "60"])
    pid, space, started = hosts.process_id(child.pid)
    assert not hosts.kill((pid, space, started + 1)) and not hosts.kill((pid, "another host", started))
    assert child.poll() is None
    child.send_signal(signal.SIGSTOP)
    assert hosts.kill((pid, space, started)) and child.wait(timeout=SECONDS) == -signal.SIGKILL
    assert not hosts.kill((pid, space, started))
    assert hosts.process_id(os.getpid())[0] == os.getpid()


def test_addresses_are_those_that_others_can_reach(monkeypatch):
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0"), (3, "ib0")])
    monkeypatch.setattr(hosts, "address_of", {"lo": "127.0.0.1", "eth0": "10.0.0.1", "ib0": "10.1.0.1"}.get)
    resolved = [(socket.AF_INET, None, 0, "", (address, 0)) for address in ("127.0.1.1", "10.2.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolved)
    monkeypatch.delenv("HOROVOD_GLOO_IFACE", raising=False)
    assert hosts.addresses() == ["10.2.0.1", "10.0.0.1", "10.1.0.1"]
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "ib0")
    assert hosts.addresses() == ["10.1.0.1", "10.2.0.1", "10.0.0.1"]
