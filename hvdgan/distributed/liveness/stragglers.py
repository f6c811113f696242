"""Finds stragglers: ranks that are behind the others and have not moved for some time."""

from collections.abc import Mapping

from hvdgan.distributed.liveness.activity import Pulse


class Progress:
    """The progress of a rank as rank 0 knows it from heartbeats.

    Args:
        now: time at which the record begins, in seconds.
    """

    def __init__(self, now: float) -> None:
        self.moved = now
        """time at which the rank was last seen to move"""
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


def stragglers(everyones: Mapping[int, Progress], now: float, seconds: float) -> list[int]:
    """The ranks that have not moved for this long while another rank is ahead of them.

    Every rank reaches the same meeting points in the same order, so a rank that is ahead waits for the others.

    Args:
        everyones: progress by rank.
        now: current time, in seconds.
        seconds: time without a move; 0: no rank is a straggler.
    """
    furthest = max(each.reached for each in everyones.values())
    return [rank for rank, each in everyones.items() if each.reached < furthest and _stands(each, now, seconds)]


def all_stand(everyones: Mapping[int, Progress], now: float, seconds: float) -> bool:
    """Whether no rank has moved for this long; never with 0 seconds."""
    return all(_stands(each, now, seconds) for each in everyones.values())


def _stands(each: Progress, now: float, seconds: float) -> bool:
    return seconds > 0 and now - each.moved > seconds
