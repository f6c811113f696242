"""Divides the work of opening data among the ranks, so that each file is read by one rank only."""

import base64
import dataclasses
import functools
import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hvdgan.cli.errors import RunError
from hvdgan.cli.shared_errors import Peers, from_all, from_root, on_all

PORTION = 100_000
"""items in one message"""
MESSAGE = 2**28
"""characters in one message of all ranks together; over MPI, Horovod counts them with 32 bits"""


def share_out(items: Sequence[str], work: Callable[[Sequence[str]], list[Any]], peers: Peers, name: str) -> list[Any]:
    """Process each item on one rank, and return the results of all items on every rank.

    Args:
        items: the items, the same on every rank.
        work: function that returns one result per item, serialisable to JSON.
        peers: the ranks; every one calls this.
        name: name of the data, for errors.

    Returns:
        The results in the order of the items, as decoded from JSON.

    Raises:
        RunError: the ranks have different items, or the work failed on some rank; raised on every rank.
    """
    if peers.size == 1:
        return work(items)
    digest = hashlib.sha256("\0".join(items).encode(errors="surrogateescape")).hexdigest()
    portioned, what = _Portioned(peers), f"{name}: its files"
    shares = from_all(lambda: [digest, len(items), work(items[peers.rank :: peers.size])], portioned, what)
    for rank, (its_digest, count, _) in enumerate(shares):
        if its_digest != shares[0][0]:
            raise RunError(
                f"{name}: rank 0 finds {shares[0][1]:,} files and rank {rank} {count:,}, or others; "
                "start every rank on the same files"
            )
    joined: list[Any] = [None] * len(items)
    for rank, (*_, results) in enumerate(shares):
        joined[rank :: peers.size] = results
    return joined


def from_first(work: Callable[[], Any], peers: Peers, name: str) -> Any:
    """Do work on rank 0, and return its result, which may be large, on every rank.

    Args:
        work: function whose result is serialisable to JSON.
        peers: the ranks; every one calls this.
        name: name of the work, for errors.

    Raises:
        RunError: the error of the work, on every rank.
    """
    if peers.size == 1:
        return work()

    def compressed() -> str:
        # The paths and sizes of many files compress to a fraction of their bytes.
        return base64.b85encode(zlib.compress(json.dumps(work()).encode(), 1)).decode()

    return json.loads(zlib.decompress(base64.b85decode(from_root(compressed, _Portioned(peers), name))))


def list_from_first(work: Callable[[], list[Any]], peers: Peers, name: str) -> list[Any]:
    """As from_first(), for a long list: its items are sent in portions, so that no rank compresses all at once.

    Args:
        work: function that returns a list, serialisable to JSON.
        peers: the ranks; every one calls this.
        name: name of the work, for errors.

    Raises:
        RunError: the error of the work, on every rank.
    """
    found: list[Any] = []

    def begin() -> int:
        found.extend(work())
        return len(found)

    count = from_first(begin, peers, name)
    for first in range(0, count if peers.size > 1 else 0, PORTION):
        portion = functools.partial(found.__getitem__, slice(first, first + PORTION))
        received = from_first(portion, peers, f"{name}, from {first}")
        if peers.rank:
            found += received
    return found


def in_turn(work: Callable[[], Any], peers: Peers, name: str) -> Any:
    """Do work on rank 0, then on one rank of each other host, then on the others.

    The first rank of a host may download files that the next ones then find on its disk.

    Args:
        work: function without collectives; each rank keeps its own result.
        peers: the ranks; every one calls this.
        name: name of the work, for errors.

    Raises:
        RunError: the error of the first rank that failed, on every rank.
    """
    turn = 0 if peers.rank == 0 else 1 if peers.local_rank == 0 else 2
    turns = range(3 if peers.size > 1 else 1)
    results = [on_all(work if now == turn else lambda: None, peers, f"{name}, turn {now}") for now in turns]
    return results[turn]


def pack(values: np.ndarray) -> str:
    """The bytes of an array of numbers as text, for share_out()."""
    return base64.b85encode(np.ascontiguousarray(values).tobytes()).decode()


def unpack(text: str, dtype: type) -> np.ndarray:
    """The flat array whose bytes pack() has turned into text."""
    return np.frombuffer(base64.b85decode(text), dtype)


@dataclasses.dataclass(frozen=True)
class _Portioned:
    """The same ranks; gather() sends a large value in several messages."""

    peers: Peers

    @property
    def rank(self) -> int:
        return self.peers.rank

    @property
    def size(self) -> int:
        return self.peers.size

    @property
    def local_rank(self) -> int:
        return self.peers.local_rank

    @property
    def local_size(self) -> int:
        return self.peers.local_size

    def gather(self, value: Any, name: str) -> list[Any]:
        text = json.dumps(value)
        most = max(1, MESSAGE // self.size)
        begun = self.peers.gather([len(text), text[:most]], name)
        texts = [[first] for _, first in begun]
        for place in range(most, max(length for length, _ in begun), most):
            more = self.peers.gather(text[place : place + most], f"{name}, from {place}")
            for parts, part in zip(texts, more, strict=True):
                parts.append(part)
        return [json.loads("".join(parts)) for parts in texts]
