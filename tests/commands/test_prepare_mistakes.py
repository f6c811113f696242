"""hvdgan.prepare: each mistake of a user is one line, and changes nothing on the disk."""

import numpy as np
import pytest
from PIL import Image

from hvdgan.prepare import main
from packed import prepare, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("data") / "images", 30)


@pytest.fixture
def place(tmp_path, monkeypatch, images):
    """The working folder, with things that are not what they should be."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").symlink_to(images)
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    np.save(tmp_path / "flat.npy", np.zeros(4, np.uint8))
    prepare(images, tmp_path / "made")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "expected SRC and DST, or --verify DST"),
        ("images", "expected SRC and DST"),
        ("images new", "--image-size: expected the height and width"),
        ("images new --image-size 0", "--image-size"),
        ("images new --image-size 8 --shards 0", "--shards"),
        ("images new --image-size 8 --shards 100000", "--shards 100000: expected at most 99999"),
        ("images new --image-size 8 --encoding gif", "--encoding"),
        ("images new --image-size 8 --channels 2", "--channels"),
        ("images new --image-size 8 --nothing", "--nothing"),
        ("nowhere new --image-size 8", "nowhere: no such file or folder"),
        ("empty new --image-size 8", "empty: found no images; expected files named *.png"),
        ("text.txt new --image-size 8", "text.txt: expected a folder of images, a zip or tar archive"),
        ("flat.npy new --image-size 8", "flat.npy: array of shape (4,)"),
        ("images mine --image-size 8", "mine: holds other files, and nothing is ever overwritten"),
        ("images text.txt --image-size 8", "text.txt: is a file; expected the name of a new folder"),
        ("images made --image-size 16 --shards 3", "made: begun with --image-size 8, and this command has 16"),
        ("images made --image-size 8 --shards 3 --dedup", "made: begun with --dedup False, and this command has True"),
        ("mine/../flat.npy made --image-size 8 --shards 3", "flat.npy: array of shape"),
        ("images new --image-size 8 --min-size 99", "images: no image is left: 0 cannot be read, 30 are too small"),
        ("--verify nowhere", "--verify nowhere: no such folder"),
        ("--verify images", "--verify images: not a folder of shards"),
        ("images new --verify made", "--verify made: takes no SRC and DST"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(place, capsys, arguments, complaint):
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}
    fit = ["--fit", "crop"] if "--image-size" in arguments else []
    assert main([*arguments.split(), *fit, *(["--workers", "1"] if "new" in arguments else [])]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hvdgan: ") and complaint in error and error.count("\n") == 1
    after = {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file() and "new" not in path.parts}
    assert {path: time for path, time in after.items() if place / "new" not in path.parents} == before


def test_other_originals_are_not_mixed_in(place, capsys):
    (place / "others").mkdir()
    Image.new("L", (8, 8)).save(place / "others" / "a.png")
    assert main("others made --image-size 8 --fit crop --shards 3".split()) == 2
    assert "made: begun from other images: images 30 then, 1 in others now" in capsys.readouterr().err


def test_two_at_once_in_one_folder_are_refused(place, capsys):
    from hvdgan.cli.files.lock import lock

    (place / "made" / "manifest.json").unlink()
    with lock(place / "made" / ".work"):
        assert main("images made --image-size 8 --fit crop --shards 3".split()) == 2
    assert "made: another hvdgan.prepare writes into it (host " in capsys.readouterr().err


def test_help_names_the_flags(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for flag in ("--image-size", "--shards", "--encoding", "--workers", "--dedup", "--min-size", "--pairs", "--verify"):
        assert flag in said
