"""Rank 0 lists a folder of images for both ranks."""

import os
import tempfile
from pathlib import Path

import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError
from hvdgan.data import open_source
from packed import write_images


@pytest.fixture
def folder(ranks):
    """Ten images in two classes, where both ranks see them."""
    folder = Path(ranks.gather(tempfile.mkdtemp() if ranks.is_root else "", "folder")[0])
    if ranks.is_root:
        write_images(folder)
    ranks.gather(None, "written")
    return folder


def opened(folder, **how):
    return open_source(Config(data=str(folder), image_size=8, fit="crop", max_bad_fraction=0.9), **how)


def test_rank_0_lists_and_both_get_the_same(ranks, folder, monkeypatch):
    listed, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or scandir(path))
    source = opened(folder, peers=ranks)
    assert len(set(listed)) == (3 if ranks.is_root else 0)  # two of them also for the kind of the files
    alone = opened(folder)
    assert source.fingerprint == alone.fingerprint
    assert source.labels.tolist() == alone.labels.tolist() and source.class_names == alone.class_names
    assert [source.key(index) for index in range(10)] == [alone.key(index) for index in range(10)]


def test_partners_in_two_folders_are_the_same_on_both(ranks, folder):
    """One input has no partner, and one image is broken."""
    if ranks.is_root:
        for side in "AB":
            write_images(folder / "pairs" / side)
        (folder / "pairs" / "A" / "class 1" / "009.png").unlink()
        (folder / "pairs" / "B" / "class 0" / "000.png").write_text("text")
    ranks.gather(None, "paired")
    source, alone = (opened(folder / "pairs", paired=True, **peers) for peers in ({"peers": ranks}, {}))
    assert len(source) == 9 and source.bad_files == alone.bad_files and len(source.bad_files) == 1
    assert source.fingerprint == alone.fingerprint and source.labels.tolist() == alone.labels.tolist()


def test_a_file_that_one_rank_does_not_see_ends_the_run_when_it_is_read(ranks, monkeypatch):
    """The host of that rank has another tree at the same path; the message names the host."""
    monkeypatch.chdir(tempfile.mkdtemp())
    write_images(Path("images"), count=10 - ranks.rank)
    source = opened("images", peers=ranks)
    assert len(source) == 10
    if ranks.rank:
        with pytest.raises(RunError, match=os.uname().nodename) as caught:
            source.fetch(9)
        assert "\n" not in str(caught.value) and "class 1/009.png" in str(caught.value)
