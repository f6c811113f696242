"""Two ranks exchange the names of many broken files in several portions."""

import json

from hvdgan.data import BadFile
from hvdgan.training.monitoring import bad_files as module
from hvdgan.training.monitoring.bad_files import BadFiles


class Counting:
    """The ranks; notes the length of each message."""

    def __init__(self, ranks):
        self._ranks = ranks
        self.rank, self.size = ranks.rank, ranks.size
        self.sent = []

    def gather(self, value, name):
        self.sent.append(len(json.dumps(value)))
        return self._ranks.gather(value, name)


def test_each_file_is_sent_once_and_in_portions(ranks):
    """Rank 0 has found 5,000 files, rank 1 has found 200 other ones and 100 of the same."""
    theirs = [range(5000), [*range(4900, 5000), *range(6000, 6200)]]
    met = [BadFile(f"{number:06d}.png", "truncated") for number in theirs[ranks.rank]]
    counting, said = Counting(ranks), []
    bad_files = BadFiles("photos", [BadFile("text.png", "empty")], 10**6, 0.5, counting, said.append, saved={})
    bad_files.report(met)
    assert len(bad_files.known) == 5201 == len(said) == len(set(said))
    names = list(bad_files.known)
    assert all(names == each for each in ranks.gather(names, "names"))
    each = len(json.dumps(list(met[0]))) + 2
    assert max(counting.sent) < (module.PORTION + 1) * each + 100
    assert len(counting.sent) == 2  # half a portion of each rank, and then rank 0 has the whole of it
    counting.sent.clear()
    bad_files.report(met)
    assert len(counting.sent) == 1 and counting.sent[0] < 100


def test_too_many_over_all_ranks_are_refused_by_all(ranks):
    bad_files = BadFiles("photos", [], 10, 0.5, ranks, lambda event: None, saved={})
    bad_files.report([BadFile(f"{ranks.rank} {number}", "cut") for number in range(2)])
    try:
        bad_files.report([BadFile(f"{ranks.rank} 2", "cut")])
    except module.RunError as error:
        assert "6 of 10 images cannot be read" in str(error)
    else:
        raise AssertionError("nothing was refused")
