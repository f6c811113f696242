"""Monitors of this process and of others, over localhost, without Horovod."""

import contextlib
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import hvdgan
from hvdgan.cli.hosts import listen
from hvdgan.distributed.liveness.member_monitor import MemberMonitor
from hvdgan.distributed.liveness.members import Group, Member
from hvdgan.distributed.liveness.root_monitor import RootMonitor

TOKEN = bytes(range(16))
SECONDS = 30  # far more than anything here takes
# The command line of a rank in a process of its own, and the work of its main thread in place of %s.
_CHILD = """
import sys, time
from monitors import Printed, group_of
from hvdgan.cli.hosts import listen
from hvdgan.distributed.liveness.member_monitor import MemberMonitor
from hvdgan.distributed.liveness.root_monitor import RootMonitor
rank, size, port, seconds = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
listener = None if rank else listen("127.0.0.1")
group = group_of(size, port, seconds)
monitor = MemberMonitor(rank, group, Printed()) if rank else RootMonitor(listener, group, Printed())
monitor.start()
print(port if rank else listener.getsockname()[1], flush=True)
%s
monitor.stop()
"""


class Printed:
    """Reactions of a monitor: prints them."""

    def say(self, text):
        print(text, flush=True)

    def lose(self, kind, rank, text, *, aloud):
        if aloud:
            self.say(text)

    def end(self, kind, rank):
        print("end", kind.decode(), rank, flush=True)


class Noted:
    """Reactions of a monitor: keeps the lines that it logs, and the ranks for which it would end the process."""

    def __init__(self):
        self.said, self.ends = queue.Queue(), queue.Queue()

    def say(self, text):
        self.said.put(text)

    def lose(self, kind, rank, text, *, aloud):
        if aloud:
            self.say(text)

    def end(self, kind, rank):
        self.ends.put((kind, rank))


@contextlib.contextmanager
def children():
    """A function that starts a rank as a process; it returns the process and the port of rank 0."""
    started = []

    def start(rank, size, port, seconds, work="sys.stdin.read()"):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD % work, *map(str, (rank, size, port, seconds))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(hvdgan.__file__).parents[1],
            env={"PYTHONPATH": f"{Path(hvdgan.__file__).parents[1]}:{Path(__file__).parent}"},
        )
        started.append(child)
        return child, int(child.stdout.readline())

    yield start
    for child in started:
        child.kill()
        child.communicate()


def group_of(size, port, seconds):
    """A group on this host: its members and their settings."""
    members = [Member(rank, f"node{rank}", (4242 + rank, "", 1), "") for rank in range(size)]
    return Group(members, ["127.0.0.1"], port, TOKEN, seconds)


def root_monitor(size, seconds, *, start=True):
    """Rank 0's monitor, its reactions and its group; without `start` it does not accept connections yet."""
    listener, noted = listen("127.0.0.1"), Noted()
    group = group_of(size, listener.getsockname()[1], seconds)
    monitor = RootMonitor(listener, group, noted)
    if start:
        monitor.start()
    return monitor, noted, group


def member_monitor(rank, group):
    """The started monitor of another rank, and its reactions."""
    noted = Noted()
    monitor = MemberMonitor(rank, group, noted)
    monitor.start()
    return monitor, noted


def wait_until(condition, what):
    """Wait until a condition holds, or fail."""
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen")
        threading.Event().wait(0.05)


def wait_until_heard(monitor, *ranks, after=float("-inf")):
    """Wait for a heartbeat of each rank: a rank that was never heard is not judged."""
    wait_until(lambda: all((monitor.last_heard(rank) or after) > after for rank in ranks), f"a heartbeat of {ranks}")
