"""Two ranks share the indexes of packed shards."""

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
from hvdgan.data.arrays.statistics import with_statistics
from hvdgan.data.formats import shard_reader
from hvdgan.data.sources.packed_shards import ShardSource
from launching import run
from packed import write_images
from packed_arrays import BESIDE, fields


@pytest.fixture
def folder(ranks):
    """Ten images in four shards, where both ranks see them."""
    folder = Path(ranks.gather(tempfile.mkdtemp() if ranks.is_root else "", "folder")[0])
    if ranks.is_root:
        write_images(folder / "images")
        flags = "--image-size 8 --fit crop --shards 4 --workers 1".split()
        # A process of its own: the command refuses to be one of several ranks.
        done = run([sys.executable, "-m", "hvdgan.prepare", "images", "made", *flags], folder)
        assert done.returncode == 0, done.stderr
    ranks.gather(None, "written")
    return folder / "made"


def opened(folder, **peers):
    return ShardSource(str(folder), image_size=8, channels=3, **peers)


def test_each_reads_the_indexes_of_some(ranks, folder, monkeypatch):
    read, verified = [], shard_reader.read_verified
    monkeypatch.setattr(shard_reader, "read_verified", lambda *each: read.append(each[-1]) or verified(*each))
    source = opened(folder, peers=ranks)
    assert len([name for name in read if name.endswith(".idx")]) == 2
    alone = opened(folder)
    assert len(source) == len(alone) == 10 and source.fingerprint == alone.fingerprint
    assert all((source.fetch(number) == alone.fetch(number)).all() for number in range(10))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("images-00000-of-00004.idx", "has another checksum"),
        ("images-00001-of-00004.idx", "has another checksum"),
        ("labels.npy", "has another checksum"),
        ("manifest.json", "not finished"),
    ],
)
def test_what_one_rank_finds_damaged_all_ranks_say(ranks, folder, name, complaint):
    path = folder / name
    if ranks.is_root:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.unlink() if name == "manifest.json" else path.write_bytes(content)
    ranks.gather(None, "damaged")
    with pytest.raises(UserError, match=complaint) as caught:
        opened(folder, peers=ranks)
    assert len(set(ranks.gather(str(caught.value), "said"))) == 1


def test_shards_that_one_rank_does_not_see_end_both(ranks, folder, monkeypatch):
    """As on a host without them."""
    monkeypatch.chdir(folder.parent if ranks.is_root else tempfile.mkdtemp())
    with pytest.raises(UserError, match="made: not finished"):
        opened("made", peers=ranks)


@pytest.fixture
def arrays(ranks):
    """Ten samples with inputs and conditions in four shards."""
    folder = Path(ranks.gather(tempfile.mkdtemp() if ranks.is_root else "", "folder")[0])
    if ranks.is_root:
        fields(folder, 10)
        done = run([sys.executable, "-m", "hvdgan.prepare", "fields.npz", "made", "--shards", "4", *BESIDE], folder)
        assert done.returncode == 0, done.stderr
    ranks.gather(None, "written")
    return folder / "made"


def test_two_ranks_open_arrays_as_one_does(ranks, arrays):
    settings = ArrayConfig(values="standard", input_values="standard", constant_values="none", conditions=("energy",))
    config = Config(data=str(arrays), arrays=settings)
    together = open_source(config, paired=True, peers=ranks)
    alone = open_source(config, paired=True)
    assert together.fingerprint == alone.fingerprint and len(together) == 10
    assert (together.fetch_batch(np.arange(10)) == alone.fetch_batch(np.arange(10))).all()
    assert with_statistics(together, ranks) == with_statistics(alone, ALONE)


def test_a_damaged_file_of_conditions_is_reported_by_both(ranks, arrays):
    if ranks.is_root:
        content = bytearray((arrays / "conditions.npy").read_bytes())
        content[-1] ^= 1
        (arrays / "conditions.npy").write_bytes(content)
    ranks.gather(None, "damaged")
    settings = ArrayConfig(values="none", input_values="none", constant_values="none")
    with pytest.raises(UserError, match=r"conditions.npy has another checksum") as caught:
        open_source(Config(data=str(arrays), arrays=settings), paired=True, peers=ranks)
    assert len(set(ranks.gather(str(caught.value), "said"))) == 1
