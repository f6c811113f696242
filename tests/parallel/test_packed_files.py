"""Two ranks open packed files as one does, and both report what is wrong with them."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE
from hvdgan.data import open_source
from hvdgan.data.packed_files import INDEX
from hvdgan.data.statistics import with_statistics
from launching import run
from packed_arrays import BESIDE, fields


@pytest.fixture
def folder(ranks):
    """Ten samples with inputs and conditions in four files, where both ranks see them."""
    folder = Path(ranks.gather(tempfile.mkdtemp() if ranks.is_root else "", "folder")[0])
    if ranks.is_root:
        fields(folder, 10)
        # A process of its own: here the command would be one of several ranks.
        done = run([sys.executable, "-m", "hvdgan.prepare", "fields.npz", "made", "--shards", "4", *BESIDE], folder)
        assert done.returncode == 0, done.stderr
    ranks.gather(None, "written")
    return folder / "made"


def opened(folder, peers=ALONE):
    settings = ArrayConfig(values="standard", input_values="standard", constant_values="none", conditions=("energy",))
    return open_source(Config(data=str(folder), arrays=settings), paired=True, peers=peers)


def test_two_ranks_open_them_as_one_does(ranks, folder):
    together, alone = opened(folder, ranks), opened(folder)
    assert together.fingerprint == alone.fingerprint and len(together) == 10
    assert (together.fetch_batch(np.arange(10)) == alone.fetch_batch(np.arange(10))).all()
    assert with_statistics(together, ranks) == with_statistics(alone, ALONE)


def test_what_one_rank_finds_wrong_all_ranks_say(ranks, folder):
    if ranks.is_root:
        (folder / INDEX).write_text((folder / INDEX).read_text().replace('"complete": true', '"complete": false'))
    ranks.gather(None, "changed")
    with pytest.raises(UserError, match="not finished") as caught:
        opened(folder, ranks)
    assert len(set(ranks.gather(str(caught.value), "said"))) == 1
