"""Which ranks stand still, by how far each has come and when it last moved."""

from collections.abc import Mapping

from hvdgan.distributed.liveness.activity import Pulse


class Progress:
    """What rank 0 has heard of a rank's activity.

    Args:
        now: when it begins to count, in seconds.
    """

    def __init__(self, now: float) -> None:
        self.moved = now
        """when the rank was last seen to move"""
        self._pulse = Pulse()

    @property
    def reached(self) -> int:
        """Meeting points that the rank has come to."""
        return self._pulse.reached

    @property
    def where(self) -> str:
        """Where its main thread stands."""
        return self._pulse.where or "nothing is known of its place"

    def add(self, pulse: Pulse, now: float) -> None:
        """Take what a heartbeat says."""
        if pulse.moves != self._pulse.moves:
            self.moved = now
        self._pulse = pulse


def who_stands(everyones: Mapping[int, Progress], now: float, seconds: float) -> list[int]:
    """The ranks that have not moved for so long though another one is further; never any for 0 seconds.

    Every rank comes to the same points in the same order, so the one that is further waits for them.
    """
    furthest = max(each.reached for each in everyones.values())
    return [rank for rank, each in everyones.items() if each.reached < furthest and _stands(each, now, seconds)]


def all_stand(everyones: Mapping[int, Progress], now: float, seconds: float) -> bool:
    """Whether no rank has moved for so long."""
    return all(_stands(each, now, seconds) for each in everyones.values())


def _stands(each: Progress, now: float, seconds: float) -> bool:
    return seconds > 0 and now - each.moved > seconds
