"""The members of a run as all ranks know them: their hosts and processes, and where rank 0 listens."""

import dataclasses
from collections.abc import Sequence

from hvdgan.distributed.liveness.connections import ENDED, FAILED, SILENT, STALLED, STANDING


@dataclasses.dataclass(frozen=True)
class Member:
    """A rank as the others know it.

    Attributes:
        rank: its number.
        host: name of its host.
        process: id of its process, from hosts.process_id().
        network: id of its network namespace, from hosts.network_id().
    """

    rank: int
    host: str
    process: tuple[int, str, int]
    network: str


@dataclasses.dataclass(frozen=True)
class Group:
    """All members, and the settings of their heartbeats.

    Attributes:
        members: the members, by rank.
        addresses: addresses at which rank 0 listens.
        port: port at which rank 0 listens.
        token: 16 bytes that only the members know.
        seconds: silence in seconds after which a rank counts as dead.
        stall_seconds: seconds without a move after which a rank counts as a straggler; 0: never.
    """

    members: Sequence[Member]
    addresses: Sequence[str]
    port: int
    token: bytes
    seconds: float
    stall_seconds: float = 0.0

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats of a rank."""
        return min(1.0, self.seconds / 5)

    def name(self, rank: int) -> str:
        """A rank with its host and pid, for messages."""
        member = self.members[rank]
        return f"rank {rank} (host {member.host}, pid {member.process[0]})"

    def describe(self, rank: int, kind: bytes) -> str:
        """A sentence about a rank that is lost."""
        if kind == STALLED:
            return (
                f"no rank has made progress for {self.stall_seconds:g} s, and no rank is behind the others, so the "
                "straggler is unknown"
            )
        words = {
            FAILED: "has failed and reported its error",
            ENDED: "has ended without reporting an error",
            STANDING: f"is alive and has made no progress for {self.stall_seconds:g} s, while others wait for it",
            SILENT: f"has been silent for {self.seconds:g} s: it is dead, frozen or cut off",
        }
        return f"{self.name(rank)} {words[kind]}"
