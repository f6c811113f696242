"""Processes become ranks; tests/parallel has several of them."""

import pytest

from hvdgan.cli.errors import UserError
from hvdgan.distributed import joining


def test_one_process_joins_nobody(no_launcher):
    no_launcher.setattr(joining.backend, "horovod", lambda: pytest.fail("Horovod was imported"))
    ranks = joining.start()
    assert (ranks.rank, ranks.size, ranks.launcher, ranks.is_root) == (0, 1, "none", True)


def test_a_copy_is_alone_under_a_launcher(no_launcher):
    no_launcher.setenv("HOROVOD_SIZE", "4")
    no_launcher.setenv("HOROVOD_RANK", "3")
    ranks = joining.alone()
    assert (ranks.rank, ranks.size) == (0, 1)


def test_another_number_of_ranks_than_expected_is_refused(no_launcher):
    with pytest.raises(UserError, match="--expect-size 4: there are 1 ranks"):
        joining.start(expect_size=4)
