"""Monitors find dead and frozen ranks and accuse no others: in-process ranks and processes, without Horovod.

Modules: distributed.liveness.member_monitor, distributed.liveness.members, distributed.liveness.monitor,
distributed.liveness.root_monitor.
"""

import signal
import threading

import pytest

from hvdgan.distributed.liveness.connections import ENDED, FAILED, SILENT
from monitors import SECONDS, children, group_of, member_monitor, root_monitor, wait_until_heard


@pytest.fixture
def start_child():
    with children() as start:
        yield start


def test_a_frozen_rank_is_named_to_all(start_child):
    root, noted, group = root_monitor(3, 1)
    other, others_noted = member_monitor(1, group)
    child, _ = start_child(2, 3, group.port, 1)
    wait_until_heard(root, 1, 2)
    child.send_signal(signal.SIGSTOP)
    assert noted.ends.get(timeout=SECONDS) == (SILENT, 2)
    assert others_noted.ends.get(timeout=SECONDS) == (SILENT, 2)
    silent = "rank 2 (host node2, pid 4244) has been silent for 1 s: it is dead, frozen or cut off"
    assert group.describe(2, SILENT) == silent and other.explanation(0) == silent
    assert noted.said.empty() and others_noted.said.empty()


def test_a_killed_rank_is_named_at_once_and_found_dead_when_it_does_not_come_back(start_child):
    root, noted, group = root_monitor(3, 1)
    other, others_noted = member_monitor(1, group)
    child, _ = start_child(2, 3, group.port, 1)
    wait_until_heard(root, 1, 2)
    child.kill()
    ended = "rank 2 (host node2, pid 4244) has ended without reporting an error"
    assert root.explanation(SECONDS) == other.explanation(SECONDS) == noted.said.get(timeout=SECONDS) == ended
    assert noted.ends.get(timeout=SECONDS) == others_noted.ends.get(timeout=SECONDS) == (ENDED, 2)
    assert others_noted.said.empty()


def test_a_rank_that_has_left_is_not_missed(start_child):
    root, noted, group = root_monitor(3, 1)
    leaving, leavings_noted = member_monitor(1, group)
    child, _ = start_child(2, 3, group.port, 1)
    wait_until_heard(root, 1, 2)
    leaving.stop()
    child.send_signal(signal.SIGSTOP)
    # Rank 2 falls silent after rank 1: if rank 1 were missed, it would be found before.
    assert noted.ends.get(timeout=SECONDS) == (SILENT, 2)
    assert noted.ends.empty() and noted.said.empty() and leavings_noted.ends.empty()


def test_rank_0_may_leave_first():
    root, noted, group = root_monitor(2, 0.5)
    other, others_noted = member_monitor(1, group)
    wait_until_heard(root, 1)
    root.stop()
    assert other.join(SECONDS)
    other.stop()
    assert all(each.empty() for each in (noted.ends, noted.said, others_noted.ends, others_noted.said))


def test_a_rank_that_fails_says_so():
    root, noted, group = root_monitor(2, 0.5)
    other, _ = member_monitor(1, group)
    wait_until_heard(root, 1)
    other.stop(failed=True)
    assert root.explanation(SECONDS) == "rank 1 (host node1, pid 4243) has failed and reported its error"
    assert noted.ends.get(timeout=SECONDS) == (FAILED, 1) and noted.said.empty()


@pytest.mark.parametrize(("signal_number", "kind"), [(signal.SIGSTOP, SILENT), (signal.SIGKILL, ENDED)])
def test_rank_0_is_missed_too(start_child, signal_number, kind):
    child, port = start_child(0, 2, 0, 1)
    member, noted = member_monitor(1, group_of(2, port, 1))
    wait_until_heard(member, 0)
    child.send_signal(signal_number)
    assert noted.ends.get(timeout=SECONDS) == (kind, 0)
    assert noted.said.empty() == (kind == SILENT)


def test_a_busy_main_thread_is_no_death(start_child):
    """Python code that never waits, for three times the silence after which a rank counts as dead."""
    root, noted, group = root_monitor(2, 1)
    child, _ = start_child(1, 2, group.port, 1, "end = time.monotonic() + 3\nwhile time.monotonic() < end: pass")
    assert child.wait(timeout=SECONDS) == 0 and child.stdout.read() == ""
    root.stop()
    assert noted.ends.empty() and noted.said.empty()


def test_rank_0_that_was_frozen_itself_accuses_nobody(start_child):
    """It reads the heartbeats that have arrived meanwhile, and does not count its own pause as the others' silence."""
    child, port = start_child(0, 2, 0, 1)
    member, noted = member_monitor(1, group_of(2, port, SECONDS))
    wait_until_heard(member, 0)
    child.send_signal(signal.SIGSTOP)
    threading.Event().wait(2)
    heard = member.last_heard(0)
    child.send_signal(signal.SIGCONT)
    wait_until_heard(member, 0, after=heard)
    stdout, _ = child.communicate("")
    assert child.returncode == 0 and stdout == ""
    member.stop()
    assert noted.ends.empty() and noted.said.empty()
