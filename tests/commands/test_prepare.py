"""hvdgan.prepare writes the same bytes for any number of processes, killed or not; --verify and mistakes are one line.

Modules: data.packing.
"""

import os
import re
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from PIL import Image

from hvdgan.prepare import main
from launching import HAS_MPI, environment, run
from messages import refused
from packed import bytes_of, index_of, prepare, write_images

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


@needs_mpi
def test_ranks_under_mpirun_make_the_same_bytes_and_report_a_mistake_once(images, wanted, tmp_path):
    done = run([*MPIRUN, *PREPARE, images, tmp_path / "made", *SMALL], tmp_path)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path / "made") == wanted and done.stdout.count("30 pictures") == 1
    done = run([*MPIRUN, *PREPARE, "nowhere", "new", *SMALL], tmp_path)
    assert done.returncode == 2 and done.stderr.count("hvdgan: ") == 1
    assert "nowhere: no such file or folder" in done.stderr and not (tmp_path / "new").exists()


def spied(folder, *lines):
    """A program that is hvdgan.prepare, with other lines in place of the function that writes a file."""
    body = "".join(f"    {line}\n" for line in lines)
    (folder / "spied.py").write_text(
        "import os, sys\nfrom hvdgan.data import packing\nwrite = packing._write\n"
        f"def other(path, *rest):\n{body}"
        "packing._write = other\nfrom hvdgan.prepare import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    return [sys.executable, "spied.py"]


@pytest.mark.parametrize(
    ("fault", "launcher", "said"),
    [
        ("os.kill(os.getpid(), 9)", [], "has died, killed or out of memory"),
        pytest.param("os.kill(os.getpid(), 9)", MPIRUN, "signal 9", marks=needs_mpi),
    ],
)
def test_a_process_that_fails_ends_all_and_the_same_command_continues(images, wanted, tmp_path, fault, launcher, said):
    """While it writes the last file."""
    failing = spied(tmp_path, f"if '00002-of' in path.name: {fault}", "write(path, *rest)")
    flags = [images, "made", *SMALL, *([] if launcher else ["--workers", "2"])]
    done = run([*launcher, *failing, *flags], tmp_path)
    assert done.returncode not in (0, 2) and "Traceback" not in done.stderr and said in done.stderr, done.stderr
    assert not index_of(tmp_path / "made")["complete"]
    done = run([*launcher, *PREPARE, *flags], tmp_path)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path / "made") == wanted


def test_no_process_loads_tensorflow_or_horovod(images, tmp_path):
    """Nor mpi4py, where no launcher is; the processes of the pool say so as well."""
    found = "found = sorted({'tensorflow', 'keras', 'horovod', 'mpi4py'} & sys.modules.keys())"
    words = spied(tmp_path, "write(path, *rest)", found, "os.write(1, f'{found} {__name__}\\n'.encode())")
    done = run([*words, images, "made", *SMALL, "--workers", "2"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:-1] == ["[] __mp_main__"] * 3


def kill_when(condition, command, cwd):
    """Start the command, kill its process when the condition holds, and wait until all processes are gone."""
    process = subprocess.Popen(command, cwd=cwd, env=environment(), stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline
    process.kill()
    process.wait(60)
    while _group(process.pid):  # the processes of the pool end by themselves
        assert time.monotonic() < deadline, "a process has stayed"
        time.sleep(0.01)


def _group(leader):
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


def test_after_a_kill_the_same_command_continues_to_the_same_bytes(tmp_path):
    """Killed when some files are whole; these are not written again. No process stays."""
    images = write_images(tmp_path / "images", 200, width=64, height=64)
    flags = ["--shards", "40", "--image-size", "32", "--fit", "crop"]
    whole, cut = prepare(images, tmp_path / "whole", *flags), tmp_path / "cut"
    command = [*PREPARE, images, cut, *flags, "--workers", "2"]
    kill_when(lambda: len(list(cut.glob("packed-*.h5"))) > 3, command, tmp_path)
    assert not index_of(cut)["complete"]
    done = {path: path.stat().st_mtime_ns for path in cut.glob("packed-*.h5")}
    assert len(done) > 3
    prepare(images, cut, *flags)
    assert bytes_of(cut) == bytes_of(whole)
    assert {path: path.stat().st_mtime_ns for path in done} == done


# what is left out, and what is reported


def test_broken_images_are_left_out_by_name_and_bounded(tmp_path, capsys):
    images = write_images(tmp_path / "images", 18)
    (images / "class 0" / "000.png").write_bytes(b"")
    cut = images / "class 1" / "003.png"
    cut.write_bytes(cut.read_bytes()[:100])
    command = [str(images), str(tmp_path / "made"), *SMALL, "--workers", "1"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert " of 18 images cannot be read" in error and "--max-bad-fraction (now 0.01)" in error
    assert error.count("\n") == 1
    assert main([*command, "--max-bad-fraction", "0.2"]) == 0
    told = capsys.readouterr()
    assert "left out class 1/003.png: " in told.err and "16 pictures in 3 files" in told.out
    left_out = dict(index_of(tmp_path / "made")["left_out"])
    assert left_out.keys() == {"class 0/000.png", "class 1/003.png"} and left_out["class 0/000.png"] == "empty file"


def damage(path, name="images", number=0):
    """Change a byte of one sample."""
    with h5py.File(path) as file:
        place = file[name].id.get_chunk_info(number).byte_offset
    content = bytearray(path.read_bytes())
    content[place + 1] ^= 1
    path.write_bytes(content)


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


# mistakes


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
