"""Divides the work of opening data among the ranks, so that each file is read by one rank only."""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hvdgan.errors.shared_errors import Peers, agree, from_all, on_all


def share_out(items: Sequence[Any], work: Callable[[Sequence[Any]], list[Any]], peers: Peers, name: str) -> list[Any]:
    """Process each item on one rank, and return the results of all items on every rank; all are of JSON types."""
    if peers.size > 1:
        digest = hashlib.sha256(json.dumps(items).encode()).hexdigest()
        agree({"number of items": len(items), "items": digest}, peers, name)
    shares = from_all(lambda: work(items[peers.rank :: peers.size]), peers, name)
    joined: list[Any] = [None] * len(items)
    for rank, results in enumerate(shares):
        joined[rank :: peers.size] = results
    return joined


def share_out_ranges(count: int, work: Callable[[range], Any], peers: Peers, name: str, *, length: int) -> list[Any]:
    """As share_out(), of the numbers below `count`, in ranges of a length."""
    bounds = [[first, min(first + length, count)] for first in range(0, count, length)]
    return share_out(bounds, lambda some: [work(range(*each)) for each in some], peers, name)


def in_turn(work: Callable[[], Any], peers: Peers, name: str) -> Any:
    """Do work on rank 0, then on one rank of each other host, then on the others.

    The first rank of a host may download files that the next ones then find on its disk.
    """
    turn = 0 if peers.rank == 0 else 1 if peers.local_rank == 0 else 2
    turns = range(3 if peers.size > 1 else 1)
    results = [on_all(work if now == turn else lambda: None, peers, f"{name}, turn {now}") for now in turns]
    return results[turn]


def pack(values: np.ndarray) -> Any:
    """The bytes of an array of numbers as text, or a list of texts, for share_out()."""
    if values.dtype.kind == "U":
        return values.tolist()
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def unpack(packed: Any, dtype: type) -> np.ndarray:
    """The flat array that pack() was given."""
    return np.ravel(packed) if isinstance(packed, list) else np.frombuffer(base64.b64decode(packed), dtype)
