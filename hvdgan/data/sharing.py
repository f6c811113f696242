"""Work on opening that the ranks share, so that a file is not looked at by each of them."""

import base64
import dataclasses
import functools
import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hvdgan.cli.errors import RunError, UserError


class Peers(Protocol):
    """The ranks that open the same data; `hvdgan.distributed.ranks.Ranks` is one."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def local_size(self) -> int: ...

    def gather(self, value: Any, name: str) -> list[Any]:
        """Every rank's value, expressible in JSON, in the order of the ranks."""


@dataclasses.dataclass(frozen=True)
class _Alone:
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    def gather(self, value: Any, name: str) -> list[Any]:
        return [value]


ALONE: Peers = _Alone()
"""one process and nobody else"""

_PORTION = 100_000
"""items that one message brings"""
_MESSAGE = 2**28
"""characters that all ranks together send in one message, which Horovod counts with 32 bits over MPI"""


def share_out(items: Sequence[str], work: Callable[[Sequence[str]], list[Any]], peers: Peers, name: str) -> list[Any]:
    """Do something with each item on one rank, and give all ranks all results.

    Args:
        items: the same on every rank.
        work: makes of some items a list of as many results, which must be expressible in JSON.
        peers: the ranks; every one calls this.
        name: of the data, for errors.

    Returns:
        The results in the order of the items, as JSON leaves them.

    Raises:
        RunError: the ranks have other items, or the work raised one on some rank; it is raised on all of them.
    """
    if peers.size == 1:
        return work(items)
    digest = hashlib.sha256("\0".join(items).encode(errors="surrogateescape")).hexdigest()
    results: list[Any] = []
    failure = None
    try:
        results = work(items[peers.rank :: peers.size])
    except RunError as error:
        failure = error
    told = [digest, len(items), failure and [str(failure), failure.exit_code], results]
    everyones = _gathered(told, peers, f"{name}: what is in it")
    for rank, (its_digest, count, its_failure, _) in enumerate(everyones):
        if its_failure is not None:
            raise _failed(*its_failure)
        if its_digest != everyones[0][0]:
            raise RunError(
                f"{name}: rank 0 finds {everyones[0][1]:,} files and rank {rank} {count:,}, or others; "
                "start every rank on the same files"
            )
    joined: list[Any] = [None] * len(items)
    for rank, (*_, its_results) in enumerate(everyones):
        joined[rank :: peers.size] = its_results
    return joined


def from_first(work: Callable[[], Any], peers: Peers, name: str) -> Any:
    """Do something on rank 0 alone, and give its result to all.

    Args:
        work: returns something expressible in JSON.
        peers: the ranks; every one calls this.
        name: of the work, for errors.

    Raises:
        RunError: what the work raised, on all ranks.
    """
    if peers.size == 1:
        return work()
    packed, failure = None, None
    if peers.rank == 0:
        try:
            # Paths and numbers of many files: packed, they are a fraction of the bytes.
            packed = base64.b85encode(zlib.compress(json.dumps(work()).encode(), 1)).decode()
        except RunError as error:
            failure = [str(error), error.exit_code]
    packed, failure = _gathered([packed, failure], peers, name)[0]
    if failure is not None:
        raise _failed(*failure)
    return json.loads(zlib.decompress(base64.b85decode(packed)))


def list_from_first(work: Callable[[], list[Any]], peers: Peers, name: str) -> list[Any]:
    """As from_first() of a list that may be long: its items travel in portions, so that no rank packs all of them.

    Args:
        work: returns a list of what is expressible in JSON.
        peers: the ranks; every one calls this.
        name: of the work, for errors.

    Raises:
        RunError: what the work raised, on all ranks.
    """
    found: list[Any] = []

    def begin() -> int:
        found.extend(work())
        return len(found)

    count = from_first(begin, peers, name)
    for first in range(0, count if peers.size > 1 else 0, _PORTION):
        portion = functools.partial(found.__getitem__, slice(first, first + _PORTION))
        received = from_first(portion, peers, f"{name}, from {first}")
        if peers.rank:
            found += received
    return found


def _gathered(value: Any, peers: Peers, name: str) -> list[Any]:
    """What peers.gather() returns, in as many messages as a large value takes."""
    text = json.dumps(value)
    most = max(1, _MESSAGE // peers.size)
    begun = peers.gather([len(text), text[:most]], name)
    texts = [[first] for _, first in begun]
    for place in range(most, max(length for length, _ in begun), most):
        for parts, more in zip(texts, peers.gather(text[place : place + most], f"{name}, from {place}"), strict=True):
            parts.append(more)
    return [json.loads("".join(parts)) for parts in texts]


def pack(values: np.ndarray) -> str:
    """An array of numbers as text, for share_out."""
    return base64.b85encode(np.ascontiguousarray(values).tobytes()).decode()


def unpack(text: str, dtype: type) -> np.ndarray:
    """What pack() made of a flat array."""
    return np.frombuffer(base64.b85decode(text), dtype)


def on_all(work: Callable[[], Any], peers: Peers, name: str) -> Any:
    """Do something on every rank, each for itself: a rank that failed alone would leave the others waiting for it.

    Args:
        work: returns what this rank gets; the others see whether it failed.
        peers: the ranks; every one calls this.
        name: of the work, for errors.

    Raises:
        RunError: what the work raised on one of them, on all.
    """
    if peers.size == 1:
        return work()
    result, failure = None, None
    try:
        result = work()
    except RunError as error:
        failure = [str(error), error.exit_code]
    for its_failure in peers.gather(failure, name):
        if its_failure is not None:
            raise _failed(*its_failure)
    return result


def in_turn(work: Callable[[], Any], peers: Peers, name: str) -> Any:
    """Do something first on rank 0, then on one rank of each other host, then on the others: what one of a host
    downloads the next find there.

    Args:
        work: returns what this rank gets; the others see whether it failed.
        peers: the ranks; every one calls this.
        name: of the work, for errors.

    Raises:
        RunError: what the work raised on one of them, on all.
    """
    turn = 0 if peers.rank == 0 else 1 if peers.local_rank == 0 else 2
    turns = range(3 if peers.size > 1 else 1)
    results = [on_all(work if now == turn else lambda: None, peers, f"{name}, turn {now}") for now in turns]
    return results[turn]


def _failed(text: str, exit_code: int) -> RunError:
    return (UserError if exit_code == UserError.exit_code else RunError)(text)
