"""Divides the work of opening data among the ranks, so that each file is read by one rank only."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hvdgan.cli.errors import RunError
from hvdgan.cli.shared_errors import Peers, from_all, on_all


def share_out(items: Sequence[str], work: Callable[[Sequence[str]], list[Any]], peers: Peers, name: str) -> list[Any]:
    """Process each item on one rank, and return the results of all items on every rank."""
    if peers.size == 1:
        return work(items)
    digest = hashlib.sha256("\0".join(items).encode(errors="surrogateescape")).hexdigest()
    shares = from_all(lambda: [digest, len(items), work(items[peers.rank :: peers.size])], peers, f"{name}: its files")
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


def in_turn(work: Callable[[], Any], peers: Peers, name: str) -> Any:
    """Do work on rank 0, then on one rank of each other host, then on the others.

    The first rank of a host may download files that the next ones then find on its disk.
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
