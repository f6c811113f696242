"""Monitors of this process and of others, over localhost, without Horovod."""

import contextlib
import queue
import subprocess
import sys

from hvdgan.distributed.liveness.activity import Activity
from hvdgan.distributed.liveness.heartbeat import Member, Root, caller, listen
from hvdgan.distributed.liveness.lost_ranks import Group
from launching import environment, wait_until

SECONDS = 60  # far more than anything here takes
# The command line of a rank in a process of its own, which leaves when its input ends.
_CHILD = """
import sys
from monitors import monitor_of, stop
place, _, monitor = monitor_of(*map(int, sys.argv[1:3]), float(sys.argv[3]), *sys.argv[4:])
print(*place, flush=True)
sys.stdin.read()
stop(monitor)
"""


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


def group_of(size, seconds):
    """A group on this host."""
    return Group([f"node{rank}" for rank in range(size)], [(4242 + rank, "", 1) for rank in range(size)], seconds)


def monitor_of(rank, size, seconds, *place):
    """The place of rank 0, as its endpoint and key, and the reactions and the started monitor of a rank."""
    if rank == 0:
        socket, (endpoint,), key = listen(is_local=True)
        place = endpoint, key
    else:
        socket = caller(place[1])
    noted = Noted()
    noted.rank, noted.group = rank, group_of(size, seconds)
    monitor = (Member if rank else Root)(noted, Activity(), socket, place[:1])
    monitor.__enter__()
    return place, noted, monitor


def stop(*monitors):
    """Let ranks leave in order."""
    for monitor in monitors:
        monitor.__exit__(None, None, None)


@contextlib.contextmanager
def children():
    """A function that starts a rank as a process; it returns the process and the place of rank 0."""
    with contextlib.ExitStack() as stack:

        def start(rank, size, seconds, *place):
            words = [sys.executable, "-c", _CHILD, *map(str, (rank, size, seconds)), *place]
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            child = stack.enter_context(subprocess.Popen(words, **streams, text=True, env=environment()))
            stack.callback(child.kill)
            return child, child.stdout.readline().split()

        yield start


def wait_until_heard(monitor, *ranks):
    """Wait for a heartbeat of each rank: a rank that was never heard is not judged."""
    wait_until(lambda: all(monitor.peers[rank].heard for rank in ranks), SECONDS, lambda: f"none of {ranks}")
