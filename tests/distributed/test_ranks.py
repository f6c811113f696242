"""The collectives of one rank; tests/parallel has those of several.

Modules: distributed.backend.
"""

import numpy as np
import pytest

from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.shared_errors import agree, from_root
from hvdgan.distributed import backend
from hvdgan.distributed.ranks import Ranks


def test_one_rank_needs_no_horovod_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(backend, "horovod", lambda: pytest.fail("Horovod was imported"))
    ranks = Ranks()
    values = np.array([1.0, 2.0], np.float32)
    np.testing.assert_array_equal(ranks.stack(values), [values])
    np.testing.assert_array_equal(ranks.broadcast_array(values), values)
    assert ranks.gather({"a": 1}, "b") == [{"a": 1}]
    assert from_root(lambda: 3, ranks, "c") == 3
    agree({"a": 1}, ranks, "d")
    ranks.broadcast([])
    ranks.shutdown()


def test_an_error_of_rank_0_keeps_its_kind():
    def fail():
        raise UserError("no such folder")

    with pytest.raises(UserError, match="no such folder"):
        from_root(fail, Ranks(), "a")

    def broken():
        raise RunError("disk full")

    with pytest.raises(RunError, match="disk full") as caught:
        from_root(broken, Ranks(), "a")
    assert caught.value.exit_code == 1
