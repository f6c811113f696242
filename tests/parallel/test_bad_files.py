"""Two ranks exchange the names of broken files."""

import pytest

from hvdgan.cli.errors import RunError
from hvdgan.data import BadFile
from hvdgan.training.observations import BadFiles


def test_each_file_is_sent_once(ranks):
    """Rank 0 has found 500 files, rank 1 has found 200 other ones and 100 of the same."""
    theirs = [range(500), [*range(400, 500), *range(600, 800)]]
    met = [BadFile(f"{number:06d}.png", "truncated") for number in theirs[ranks.rank]]
    said = []
    bad_files = BadFiles("photos", [BadFile("text.png", "empty")], 10**6, 0.5, ranks, said.append, saved={})
    for _ in range(2):
        bad_files.report(met)
        assert len(bad_files.known) == 701 == len(said) == len(set(said))
    names = list(bad_files.known)
    assert all(names == each for each in ranks.gather(names, "names"))


def test_too_many_over_all_ranks_are_refused_by_all(ranks):
    bad_files = BadFiles("photos", [], 10, 0.5, ranks, lambda event: None, saved={})
    bad_files.report([BadFile(f"{ranks.rank} {number}", "cut") for number in range(2)])
    with pytest.raises(RunError, match="6 of 10 images cannot be read"):
        bad_files.report([BadFile(f"{ranks.rank} 2", "cut")])
