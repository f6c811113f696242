"""Work that may fail on one rank: the ranks exchange the outcomes, and an error of one is raised on all of them.

A rank that stopped alone would leave the others waiting for it in their next collective.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from hvdgan.errors import RankFailed, RunError, UserError, in_one_line

T = TypeVar("T")
_LONGEST = 500
"""characters of the text of an error that is no RunError, at most"""


class Peers(Protocol):
    """The ranks of a run as code without Horovod sees them; `hvdgan.distributed.ranks.Ranks` is one."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def local_size(self) -> int: ...

    def gather(self, value: Any, name: str) -> list[Any]:
        """The values of all ranks in rank order. A value must be serialisable to JSON."""


@dataclasses.dataclass(frozen=True)
class _Alone:
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    def gather(self, value: Any, name: str) -> list[Any]:
        return [value]


ALONE: Peers = _Alone()
"""the only rank of a run"""


def from_all(work: Callable[[], Any], peers: Peers, name: str, *, names_rank: bool = False) -> list[Any]:
    """Do work on every rank, and return the results of all ranks, in rank order, on each of them.

    The work has no collectives, and its result is serialisable to JSON. If it fails, every rank raises the first
    failing rank's error, with its text and exit code: the original where it arose, RankFailed if it is no RunError; a
    single rank raises the original. With `names_rank` the error on the other ranks begins with that rank's number.
    """
    if peers.size == 1:
        return [work()]
    result, failure = None, None
    try:
        result = work()
    except Exception as error:  # of any class, because the others must not wait for this rank
        failure = error
    outcomes = peers.gather([result, failure and _encoded(failure)], name)
    for rank, (_, encoded) in enumerate(outcomes):
        if encoded is not None:
            own = failure if failure and _encoded(failure) == encoded else None
            if isinstance(own, RunError):
                raise own
            raise _decoded(encoded, rank, names_rank) from own
    return [result for result, _ in outcomes]


def on_all(work: Callable[[], T], peers: Peers, name: str, *, names_rank: bool = False) -> T:
    """Do work on every rank; each keeps its own result, of any type. Errors are those of from_all()."""
    results: list[T] = []
    from_all(lambda: results.append(work()), peers, name, names_rank=names_rank)
    return results[0]


def from_root(work: Callable[[], T], peers: Peers, name: str) -> T:
    """Do work on rank 0, and return its result, serialisable to JSON, on every rank. Errors are those of from_all()."""
    return cast(T, from_all(work if peers.rank == 0 else lambda: None, peers, name)[0])


def agree(facts: dict[str, Any], peers: Peers, what: str) -> None:
    """Check that facts, serialisable to JSON, are the same on all ranks; the RunError names the first that differs."""
    everyone = peers.gather(facts, what)
    for key in dict.fromkeys(key for each in everyone for key in each):
        values = [each.get(key) for each in everyone]
        for rank, value in enumerate(values):
            if value != values[0]:
                raise RunError(
                    f"the ranks disagree on {what}: {key} is {_short(values[0])} on rank 0 and {_short(value)} on "
                    f"rank {rank}; start every rank with the same command on the same files"
                )


def _encoded(error: Exception) -> list[Any]:
    """An error as JSON: its text, and its exit code if it is a RunError."""
    if isinstance(error, RunError):
        return [str(error), error.exit_code]
    # The repr of TensorFlow's errors has no text.
    text = repr(error) if error.args else f"{type(error).__name__}: {in_one_line(error)[:_LONGEST]}"
    return [text, None]


def _decoded(encoded: list[Any], rank: int, names_rank: bool) -> RunError:
    """The error that the other ranks raise for an error of this rank."""
    text, exit_code = encoded
    if exit_code is None:
        return RankFailed(f"rank {rank} failed: {text}")
    kind = UserError if exit_code == UserError.exit_code else RunError
    return kind(f"rank {rank}: {text}" if names_rank else text)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
