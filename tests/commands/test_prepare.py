"""hvdgan.prepare writes the same bytes for any number of processes, killed or not; --verify and mistakes are one line.
Modules: data.packing"""

import re
import sys

import numpy as np
import pytest
from PIL import Image

from hvdgan.prepare import main
from launching import HAS_MPI, run
from messages import refused
from packed import bytes_of, damage, index_of, prepare, write_images

PREPARE = [sys.executable, "-m", "hvdgan.prepare"]
SMALL = ["--image-size", "8", "--fit", "crop", "--shards", "3"]
MPIRUN = ["mpirun", "-n", "3", "--oversubscribe"]
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="no MPI on this machine")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("data") / "images", 30)


@pytest.fixture(scope="module")
def wanted(images):
    """What one process makes of them."""
    return bytes_of(prepare(images, images.parent / "by one"))


def test_two_processes_make_the_same_bytes_and_what_is_finished_stays(images, wanted, tmp_path, capsys):
    made = prepare(images, tmp_path / "made", "--workers", "2")
    assert bytes_of(made) == wanted
    before = {path: path.stat().st_mtime_ns for path in made.iterdir()}
    prepare(images, made)
    assert "it was finished before" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in made.iterdir()} == before


@pytest.mark.long
@needs_mpi
def test_ranks_under_mpirun_make_the_same_bytes_and_report_a_mistake_once(images, wanted, tmp_path):
    done = run([*MPIRUN, *PREPARE, images, tmp_path / "made", *SMALL], tmp_path)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path / "made") == wanted and done.stdout.count("30 pictures") == 1
    done = run([*MPIRUN, *PREPARE, "nowhere", "new", *SMALL], tmp_path)
    assert done.returncode == 2 and done.stderr.count("hvdgan: ") == 1
    assert "nowhere: no such file or folder" in done.stderr and not (tmp_path / "new").exists()


KILLED = """
import os, sys
from hvdgan.data import packing
from hvdgan.prepare import main

def killed(path, *rest, write=packing._write):
    os.kill(os.getpid(), 9) if "00002-of" in path.name else write(path, *rest)

packing._write = killed
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.parametrize(
    ("launcher", "said"),
    [([], "has died, killed or out of memory"), pytest.param(MPIRUN, "signal 9", marks=[needs_mpi, pytest.mark.long])],
)
def test_a_process_that_is_killed_ends_all_and_the_same_command_continues(images, wanted, tmp_path, launcher, said):
    """While it writes the last file; those that are whole are not written again."""
    (tmp_path / "killed.py").write_text(KILLED)
    failing = [sys.executable, "killed.py"]
    flags = [images, "made", *SMALL, *([] if launcher else ["--workers", "2"])]
    done = run([*launcher, *failing, *flags], tmp_path)
    assert done.returncode not in (0, 2) and "Traceback" not in done.stderr and said in done.stderr, done.stderr
    assert not index_of(tmp_path / "made")["complete"]
    whole = {path: path.stat().st_mtime_ns for path in (tmp_path / "made").glob("packed-*.h5")}
    done = run([*launcher, *PREPARE, *flags], tmp_path)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path / "made") == wanted and {path: path.stat().st_mtime_ns for path in whole} == whole


def test_broken_images_are_left_out_by_name_and_bounded(tmp_path, capsys):
    images = write_images(tmp_path / "images", 18)
    (images / "class 0" / "000.png").write_bytes(b"")
    cut = images / "class 1" / "003.png"
    cut.write_bytes(cut.read_bytes()[:100])
    command = [str(images), str(tmp_path / "made"), *SMALL, "--workers", "1"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert " of 18 samples cannot be read" in error and "--max-bad-fraction (now 0.01)" in error
    assert error.count("\n") == 1
    assert main([*command, "--max-bad-fraction", "0.2"]) == 0
    told = capsys.readouterr()
    assert "left out class 1/003.png: " in told.err and "16 pictures in 3 files" in told.out
    left_out = dict(index_of(tmp_path / "made")["left_out"])
    assert left_out.keys() == {"class 0/000.png", "class 1/003.png"} and left_out["class 0/000.png"] == "empty file"


def test_verify_names_file_and_sample_and_finds_damage_beside_the_samples(images, tmp_path, capsys):
    made = prepare(images, tmp_path / "made", "--shards", "6")
    assert main(["--verify", str(made)]) == 0
    assert capsys.readouterr().out.endswith("verified\n")
    damage(made / "packed-00001-of-00006.h5", number=1)
    (made / "packed-00002-of-00006.h5").unlink()
    beside = {3: "labels", 4: "names", 5: "digests"}
    for number, name in beside.items():
        damage(made / f"packed-0000{number}-of-00006.h5", name)
    assert main(["--verify", str(made)]) == 1
    told = capsys.readouterr()
    sample, gone = (f"{made}/packed-0000{number}-of-00006.h5" for number in (1, 2))
    assert re.search(rf"^{sample}\[1\] \(class \d/\d+\.\w+\): ", told.out, re.MULTILINE)
    assert re.search(rf"^{gone}: .*No such file", told.out, re.MULTILINE) and "packed-00000" not in told.out
    for number in beside:
        assert f"{made}/packed-0000{number}-of-00006.h5: its checksum does not match" in told.out
    assert told.err.count("\n") == 1 and "is damaged in 7 places" in told.err and told.out.count("\n") == 7


@pytest.fixture(scope="module")
def place(images):
    """A folder with things that are not what they should be."""
    folder = images.parent / "place"
    for name in ("empty", "mine", "others"):
        (folder / name).mkdir(parents=True)
    (folder / "images").symlink_to(images)
    (folder / "text.txt").write_text("text")
    (folder / "mine" / "thesis.txt").write_text("all of it")
    Image.new("L", (8, 8)).save(folder / "others" / "a.png")
    np.save(folder / "flat.npy", np.zeros(4, np.uint8))
    np.save(folder / "volumes.npy", np.zeros((4, 2, 3, 4)))
    prepare(images, folder / "made")
    return folder


@pytest.mark.parametrize("arguments", refused("prepare"))
def test_a_mistake_is_one_line_and_changes_nothing(place, monkeypatch, messages, arguments):
    monkeypatch.chdir(place)
    fit = ["--fit", "crop"] if "--image-size" in arguments else []
    messages.refuses("prepare", main, arguments, *fit, folder=place)
