"""Finds stragglers: ranks that have been behind the others for some time without a move."""

from collections.abc import Mapping

from hvdgan.distributed.liveness.activity import Pulse


class Progress:
    """The progress of a rank as rank 0 knows it from heartbeats."""

    def __init__(self, now: float) -> None:
        self.moved = now
        """time at which the rank was last seen to move"""
        self.behind: float | None = None
        """time since which another rank has been ahead of it; None: no rank is ahead"""
        self._pulse = Pulse()

    @property
    def reached(self) -> int:
        """The number of meeting points that the rank has reached."""
        return self._pulse.reached

    @property
    def where(self) -> str:
        """The place of its main thread in the code."""
        return self._pulse.where or "nothing is known of its place"

    def add(self, pulse: Pulse, now: float) -> None:
        """Record the pulse of a heartbeat."""
        if pulse.moves != self._pulse.moves:
            self.moved = now
        self._pulse = pulse

    def compare(self, furthest: int, now: float) -> None:
        """Record whether the rank is behind."""
        if self.reached == furthest:
            self.behind = None
        elif self.behind is None:
            self.behind = now

    def excuse(self, pause: float) -> None:
        """Do not count `pause` seconds, in which no heartbeat could be received."""
        self.moved += pause
        if self.behind is not None:
            self.behind += pause

    def stands(self, now: float, seconds: float) -> bool:
        """Whether the rank has not moved for this long; never with 0 seconds.

        If it is behind, the time counts from when it fell behind: until then it may have waited for another rank.
        """
        since = self.moved if self.behind is None else max(self.moved, self.behind)
        return seconds > 0 and now - since > seconds


def compare(everyones: Mapping[int, Progress], now: float) -> None:
    """Record which ranks are behind; called at every heartbeat, so that the time at which one falls behind is known."""
    furthest = max(each.reached for each in everyones.values())
    for each in everyones.values():
        each.compare(furthest, now)


def stragglers(everyones: Mapping[int, Progress], now: float, seconds: float) -> list[int]:
    """The ranks that have been behind for this long and have not moved.

    Every rank reaches the same meeting points in the same order, so a rank that is ahead waits for the others.
    """
    return [rank for rank, each in everyones.items() if each.behind is not None and each.stands(now, seconds)]


def all_stand(everyones: Mapping[int, Progress], now: float, seconds: float) -> bool:
    """Whether no rank has made progress for this long; never with 0 seconds."""
    return all(each.stands(now, seconds) for each in everyones.values())
