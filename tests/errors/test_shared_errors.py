"""An error on one rank is raised on all of them, with its text, its exit code and its cause."""

import pytest

from hvdgan.errors import RankFailed, RunError, UserError
from hvdgan.errors.shared_errors import from_all, from_root, on_all
from thread_ranks import Threads


def run(collective, work, size=3, **options):
    """The result and the error of each rank; work receives the number of the rank."""
    results = [None] * size

    def one(peers):
        results[peers.rank] = collective(lambda: work(peers.rank), peers, "x", **options)

    errors = Threads(size).run(one)
    return results, errors


def failing(rank, error, cause=None):
    """Work that raises on one rank."""

    def work(mine):
        if mine == rank:
            raise error from cause
        return 10 * mine

    return work


def test_results_reach_all_ranks_or_stay_where_they_are_or_come_from_rank_0():
    assert run(from_all, lambda rank: 10 * rank) == ([[0, 10, 20]] * 3, [None] * 3)
    assert run(on_all, lambda rank: {rank}) == ([{0}, {1}, {2}], [None] * 3)  # a set is no JSON
    assert run(from_root, lambda rank: 10 * rank + 7) == ([7] * 3, [None] * 3)


@pytest.mark.parametrize("collective", [from_all, on_all])
@pytest.mark.parametrize("kind", [RunError, UserError])
def test_an_error_is_raised_on_all_and_keeps_its_cause_where_it_arose(collective, kind):
    cause, error = OSError("disk"), kind("cannot read x")
    _, errors = run(collective, failing(1, error, cause))
    assert errors[1] is error and error.__cause__ is cause
    assert [(type(each), str(each), each.exit_code) for each in errors] == [(kind, "cannot read x", kind.exit_code)] * 3


def test_other_exceptions_are_one_class_on_all_ranks_and_the_cause_where_they_arose():
    """Code that catches it does the same on every rank."""
    error = KeyError("data")
    _, errors = run(on_all, failing(2, error))
    assert [(type(each), str(each)) for each in errors] == [(RankFailed, "rank 2 failed: KeyError('data')")] * 3
    assert [each.__cause__ for each in errors] == [None, None, error]
