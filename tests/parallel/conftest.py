"""Tests for several ranks: every rank runs them at the same time, in the same order.

tests/distributed/test_two_ranks.py starts them; a plain pytest passes them by, since one rank would prove nothing.
"""

import pytest

from hvdgan.distributed import joining
from hvdgan.launching.launched import launched

collect_ignore_glob = ["test_*.py"] if launched()[1] == 1 else []


@pytest.fixture(scope="session")
def ranks():
    ranks = joining.start()
    assert ranks.size == 2
    return ranks
