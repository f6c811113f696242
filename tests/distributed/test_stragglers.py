"""Which ranks count as stragglers, by a clock that the tests set."""

from hvdgan.distributed.liveness.activity import Pulse
from hvdgan.distributed.liveness.stragglers import Progress, all_stand, compare, stragglers

SECONDS = 600


class Ranks:
    """Two ranks that begin at meeting point 1 at time 0, and the verdict about them at a later time."""

    def __init__(self):
        self._everyones = {rank: Progress(0) for rank in range(2)}
        self._moves = 0
        for rank in range(2):
            self.move(rank, 1, now=0)

    def move(self, rank, reached, now):
        self._moves += 1
        self._everyones[rank].add(Pulse(reached, self._moves), now)

    def found(self, now):
        compare(self._everyones, now)
        return stragglers(self._everyones, now, SECONDS)

    def all_stand(self, now):
        return all_stand(self._everyones, now, SECONDS)

    def excuse(self, pause):
        for each in self._everyones.values():
            each.excuse(pause)


def test_a_rank_that_has_waited_for_long_work_is_no_straggler_when_the_other_moves_on():
    ranks = Ranks()
    ranks.move(0, 2, now=1)
    for now in range(2, 700):
        ranks.move(1, 1, now)
        assert ranks.found(now) == []
    ranks.move(1, 3, now=700)  # rank 0 has been released, and its next heartbeat is on its way
    assert ranks.found(700.5) == ranks.found(700 + SECONDS) == [] and not ranks.all_stand(700 + SECONDS + 0.2)
    assert ranks.found(701 + SECONDS) == [0]


def test_the_time_behind_counts_anew_after_the_rank_has_caught_up():
    ranks = Ranks()
    ranks.move(1, 2, now=10)
    assert ranks.found(10) == []
    ranks.move(0, 2, now=20)
    assert ranks.found(20) == []
    for now in range(21, 900):
        ranks.move(1, 2, now)
        assert ranks.found(now) == []
    ranks.move(1, 3, now=900)
    assert ranks.found(900) == ranks.found(900 + SECONDS) == []
    assert ranks.found(901 + SECONDS) == [0]


def test_a_rank_that_is_behind_and_moves_is_no_straggler_until_it_stands():
    ranks = Ranks()
    ranks.move(1, 2, now=0)
    for now in range(2000):
        ranks.move(0, 1, now)
        assert ranks.found(now) == []
    assert ranks.found(1999 + SECONDS) == [] and ranks.found(2000 + SECONDS) == [0]


def test_a_pause_of_rank_0_does_not_count_as_time_behind():
    ranks = Ranks()
    ranks.move(1, 2, now=0)
    assert ranks.found(0) == []
    ranks.excuse(1000)
    assert ranks.found(1000 + SECONDS) == [] and ranks.found(1001 + SECONDS) == [0]
