"""Ranks that are threads of one process, for tests of code that needs peers and no Horovod."""

import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor


@dataclasses.dataclass
class Threads:
    """A number of ranks that are threads of this process."""

    size: int = 2

    def __post_init__(self):
        self.barrier, self.values = threading.Barrier(self.size, timeout=60), [None] * self.size

    def run(self, work):
        """Do the work on each rank; returns the error of each, or None."""

        def one(rank):
            threading.current_thread().name = f"rank {rank}"
            work(Rank(self, rank))

        with ThreadPoolExecutor(self.size) as pool:
            return [each.exception() for each in [pool.submit(one, rank) for rank in range(self.size)]]


@dataclasses.dataclass
class Rank:
    """One of them, as `hvdgan.errors.shared_errors.Peers`."""

    threads: Threads
    rank: int
    local_size = 1
    local_rank = 0

    @property
    def size(self):
        return self.threads.size

    def gather(self, value, name):
        self.threads.values[self.rank] = json.dumps([name, value])
        self.threads.barrier.wait()
        named = [json.loads(each) for each in self.threads.values]
        self.threads.barrier.wait()
        assert len({name for name, _ in named}) == 1
        return [value for _, value in named]
