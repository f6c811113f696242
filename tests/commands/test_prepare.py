"""hvdgan.prepare writes the same bytes for any number of processes, killed or not; the manifest and --verify.

Modules: data.packing.destination, data.packing.parts, data.packing.shard_writer, data.packing.verify,
data.packing.worker_pool.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hvdgan.cli.files import replacing
from hvdgan.data.packing import shard_writer
from hvdgan.prepare import main
from launching import HAS_MPI, ROOT, environment, run
from packed import bytes_of, manifest_of, names_in, prepare, shards_of, write_images, zipped

PREPARE = [sys.executable, "-m", "hvdgan.prepare"]
SMALL = ["--image-size", "8", "--fit", "crop"]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("data") / "images", 30)


@pytest.fixture(scope="module")
def wanted(images):
    """What one process makes of them."""
    return bytes_of(prepare(images, images.parent / "by one"))


# the same bytes


WAYS = {"two processes": ["--workers", "2"], "three processes": ["--workers", "3"]}


@pytest.mark.parametrize("way", WAYS)
def test_any_number_of_processes_makes_the_same_bytes(images, wanted, tmp_path, way):
    assert bytes_of(prepare(images, tmp_path / "made", *WAYS[way])) == wanted


@pytest.mark.skipif(not HAS_MPI, reason="no MPI on this machine")
@pytest.mark.parametrize("flags", [[], ["--dedup", "--workers", "2"]])
def test_two_ranks_under_mpirun_make_the_same_bytes(images, tmp_path, flags):
    alone = prepare(images, tmp_path / "alone", *flags)
    command = ["mpirun", "-n", "2", "--oversubscribe", *PREPARE, images, tmp_path / "made", *SMALL]
    done = run([*command, "--shards", "3", *flags], tmp_path)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path / "made") == bytes_of(alone)
    assert done.stdout.count("30 images") == 1


@pytest.mark.skipif(not HAS_MPI, reason="no MPI on this machine")
def test_a_mistake_under_mpirun_is_reported_once_with_exit_code_2(tmp_path):
    done = run(["mpirun", "-n", "2", "--oversubscribe", *PREPARE, "nowhere", "made", "--image-size", "8"], tmp_path)
    assert done.returncode == 2 and done.stderr.count("hvdgan: ") == 1
    assert "nowhere: no such file or folder" in done.stderr and not (tmp_path / "made").exists()


FAULTS = {
    "killed": ("os.kill(os.getpid(), 9)", "signal 9"),
    "full disk": (
        "raise OSError(28, 'No space left on device')",
        "hvdgan: rank 1: made/images-00001-of-00003.tfrecord",
    ),
}


@pytest.mark.skipif(not HAS_MPI, reason="no MPI on this machine")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_that_fails_ends_all_and_the_same_command_continues(images, wanted, tmp_path, fault):
    """Rank 1 fails while it packs its first shard, and rank 0 packs two."""
    code, said = FAULTS[fault]
    (tmp_path / "failing.py").write_text(
        "import os, sys\n"
        "from hvdgan.data.packing import shard_writer\n"
        "record_of = shard_writer.record_of\n"
        "def fail(part, number, *rest):\n"
        "    if os.environ['OMPI_COMM_WORLD_RANK'] == '1' and number == 4:\n"
        f"        {code}\n"
        "    return record_of(part, number, *rest)\n"
        "shard_writer.record_of = fail\n"
        "from hvdgan.prepare import main\n"
        "sys.exit(main())\n"
    )
    flags = [images, "made", *SMALL, "--shards", "3"]
    done = run(["mpirun", "-n", "2", "--oversubscribe", sys.executable, "failing.py", *flags], tmp_path)
    assert done.returncode not in (0, 2) and said in done.stderr, done.stderr
    assert not (tmp_path / "made" / "manifest.json").exists() and "Traceback" not in done.stderr
    done = run(["mpirun", "-n", "2", "--oversubscribe", *PREPARE, *flags], tmp_path)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path / "made") == wanted


# killed


def kill_when(folder, condition, flags, cwd):
    """Start the command, kill it with SIGKILL when the condition holds, and wait until its processes are gone."""
    process = subprocess.Popen([*PREPARE, *flags], cwd=cwd, env=environment(), start_new_session=True)
    deadline = time.monotonic() + 60
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline
    process.kill()
    process.wait()
    while _group(process.pid):  # the processes of the pool end by themselves
        assert time.monotonic() < deadline, "a process has stayed"
        time.sleep(0.01)


def _group(leader):
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("finished", "dedup"), [(0, False), (3, False), (0, True)])
def test_after_a_kill_the_same_command_continues_to_the_same_bytes(tmp_path, finished, dedup):
    """Killed when its work has begun, or when some shards are finished; these are not written again."""
    images = write_images(tmp_path / "images", 200, width=64, height=64)
    flags = ["--shards", "20", "--image-size", "32", "--fit", "crop", *(["--dedup"] if dedup else [])]
    whole, cut = prepare(images, tmp_path / "whole", *flags), tmp_path / "cut"
    work = cut / ".work"

    def far_enough():
        return len(list(cut.glob("*.json"))) > finished if not dedup else len(list(work.glob("*.json"))) > 3

    kill_when(cut, far_enough, [images, cut, *flags, "--workers", "2"], tmp_path)
    assert not (cut / "manifest.json").exists()
    done = {path: path.stat().st_mtime_ns for path in cut.glob("*.tfrecord") if path.with_suffix(".json").exists()}
    assert len(done) >= finished
    prepare(images, cut, *flags)
    assert bytes_of(cut) == bytes_of(whole)
    assert {path: path.stat().st_mtime_ns for path in done} == done


@pytest.mark.parametrize("dedup", [False, True])
def test_a_crash_at_any_rename_leaves_what_can_be_gone_on_with(tmp_path, monkeypatch, dedup):
    """After each of the renames by which a file becomes whole, as if the power had gone."""
    images = write_images(tmp_path / "images", 6)
    Image.open(images / "class 0" / "000.png").save(images / "class 1" / "again.png")
    flags = ["--shards", "2", *(["--dedup"] if dedup else [])]
    wanted = bytes_of(prepare(images, tmp_path / "whole", *flags))
    rename, made = Path.rename, tmp_path / "made"
    for number in itertools.count(1):
        calls = []

        def crash_at_last(*paths, number=number, calls=calls):
            rename(*paths)
            calls.append(paths)
            if len(calls) == number:
                raise KeyboardInterrupt

        monkeypatch.setattr(Path, "rename", crash_at_last)
        code = main([str(images), str(made), *SMALL, "--workers", "1", *flags])
        monkeypatch.setattr(Path, "rename", rename)
        if code == 0:
            break
        assert code == 130
        assert bytes_of(prepare(images, made, *flags)) == wanted, f"crash after {calls[-1]}"
        shutil.rmtree(made)
    assert number == 15


def test_a_finished_folder_is_left_as_it_is(images, tmp_path, capsys):
    made = prepare(images, tmp_path / "made")
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    prepare(images, made)
    assert "it was finished before" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_a_process_that_dies_is_reported(images, tmp_path):
    (tmp_path / "dying.py").write_text(
        "import os, sys\n"
        "from hvdgan.data.packing import shard_writer\n"
        "shard_writer.encoded = lambda *_: os._exit(9)\n"
        "from hvdgan.prepare import main\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(main())\n"
    )
    done = run([sys.executable, "dying.py", images, "made", *SMALL, "--workers", "2"], tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "a process of --workers has died" in done.stderr


def test_a_full_disk_is_one_line_and_the_command_continues_later(images, wanted, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(replacing, "flush", full)
    flags = [str(images), str(tmp_path / "made"), *SMALL, "--shards", "3", "--workers", "1"]
    assert main(flags) == 1
    error = capsys.readouterr().err
    assert "cannot be written: [Errno 28] No space left" in error and error.count("\n") == 1
    monkeypatch.undo()
    assert bytes_of(prepare(images, tmp_path / "made")) == wanted


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_originals_that_vanish_are_not_noted_as_broken(images, wanted, tmp_path, monkeypatch, capsys, kind):
    """A file system that goes away for a while would else leave its images out for ever."""
    source, away = tmp_path / "originals", tmp_path / "away"
    shutil.copytree(images, source) if kind == "folder" else zipped(images, source)
    read, done = shard_writer.record_of, []

    def read_and_vanish(*arguments):
        done.append(read(*arguments))
        if len(done) == 15:
            source.rename(away)
        return done[-1]

    monkeypatch.setattr(shard_writer, "record_of", read_and_vanish)
    assert main([str(source), str(tmp_path / "made"), *SMALL, "--shards", "3", "--workers", "1"]) == 1
    error = capsys.readouterr().err
    assert "No such file or directory" in error and "it existed when the images were listed" in error
    assert "class 1/" in error and error.count("\n") == 1 and not (tmp_path / "made" / "manifest.json").exists()
    away.rename(source)
    prepare(source, tmp_path / "made")
    assert shards_of(tmp_path / "made") == {name: wanted[name] for name in shards_of(tmp_path / "made")}


def test_originals_changed_between_a_kill_and_the_restart_are_refused(images, tmp_path, monkeypatch, capsys):
    """Even where each still has its size."""
    source, made = shutil.copytree(images, tmp_path / "originals"), tmp_path / "made"
    flags = [str(source), str(made), *SMALL, "--shards", "3", "--workers", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(replacing, "flush", lambda path: os.fsync(-1) if "00002" in path.name else None)
        assert main(flags) == 1
    assert len(list(made.glob("*.tfrecord"))) == 2
    changed = source / "class 0" / "002.bmp"
    size = changed.stat().st_size
    Image.new(Image.open(changed).mode, (12, 10)).save(changed)
    assert changed.stat().st_size == size
    capsys.readouterr()
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert f"begun from other images: files of {source} were written again since" in error
    changed.unlink()
    assert main(flags) == 2
    assert "begun from other images: images 30 then, 29 in" in capsys.readouterr().err


def test_no_process_loads_tensorflow_or_horovod(images, tmp_path):
    """Nor mpi4py, where no launcher is; the processes of the pool say so as well."""
    (tmp_path / "spy.py").write_text(
        "import os, sys\n"
        "from hvdgan.data.packing import shard_writer\n"
        "original = shard_writer.encoded\n"
        "def encoded(*arguments):\n"
        "    found = sorted({'tensorflow', 'keras', 'horovod', 'mpi4py'} & sys.modules.keys())\n"
        "    os.write(1, f'{found} {__name__}\\n'.encode())\n"
        "    return original(*arguments)\n"
        "shard_writer.encoded = encoded\n"
        "from hvdgan.prepare import main\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(main())\n"
    )
    for workers, name in (("1", "__main__"), ("2", "__mp_main__")):
        flags = [images, f"made by {workers}", *SMALL, "--workers", workers]
        done = run([sys.executable, "spy.py", *flags], tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[:-1] == [f"[] {name}"] * 30


# what is left out, and what is reported


def test_the_manifest_tells_what_the_shards_hold(images, tmp_path):
    (tmp_path / "images").symlink_to(images)
    made = prepare(tmp_path / "images", tmp_path / "made", "--encoding", "raw")
    manifest = manifest_of(made)
    assert (manifest["count"], manifest["image_size"], manifest["channels"]) == (30, 8, 3)
    assert manifest["class_names"] == ["class 0", "class 1"] and manifest["images_per_label"] == {"0": 15, "1": 15}
    assert names_in(made) == sorted(str(path.relative_to(images)) for path in images.rglob("*.*"))
    from hvdgan.cli.config import Config
    from hvdgan.data import open_source

    pixels = open_source(Config(data=str(made), image_size=8)).fetch_batch(np.arange(30))
    np.testing.assert_allclose(manifest["channel_means"], pixels.mean(axis=(0, 1, 2)))
    assert set(manifest["files"]) == {path.name for path in made.iterdir()} - {"manifest.json", "prepare.json"}


def test_broken_images_are_left_out_by_name_and_bounded(tmp_path, capsys):
    images = write_images(tmp_path / "images", 18)
    (images / "class 0" / "000.png").write_bytes(b"")
    cut = images / "class 1" / "003.png"
    cut.write_bytes(cut.read_bytes()[:100])
    os.mkfifo(images / "class 0" / "pipe.png")
    command = [str(images), str(tmp_path / "made"), *SMALL, "--workers", "1"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "3 of 19 images cannot be read" in error and "--max-bad-fraction (now 0.01)" in error
    assert error.count("\n") == 1
    assert main([*command, "--max-bad-fraction", "0.2"]) == 0  # continues, and only writes the manifest
    failures = dict(manifest_of(tmp_path / "made")["failures"])
    assert failures.keys() == {"class 0/000.png", "class 0/pipe.png", "class 1/003.png"}
    assert failures["class 0/000.png"] == "empty file" and failures["class 0/pipe.png"] == "not a regular file"
    assert "skipped class 1/003.png: " in capsys.readouterr().err


def test_duplicates_and_small_images_are_left_out(tmp_path):
    images = write_images(tmp_path / "images", 12, width=20, height=16)
    Image.open(images / "class 0" / "000.png").save(images / "class 1" / "again.bmp")
    Image.new("RGB", (30, 7), "red").save(images / "class 1" / "flat.png")
    for shards in ("1", "5"):
        made = prepare(images, tmp_path / f"made {shards}", "--shards", shards, "--dedup", "--min-size", "8")
        manifest = manifest_of(made)
        assert (manifest["count"], manifest["small"], manifest["duplicates"]) == (12, 1, 1)
        facts = [json.loads(path.read_text()) for path in made.glob("images-*.json")]
        assert [pair for one in facts for pair in one["duplicates"]] == [["class 1/again.bmp", "class 0/000.png"]]
        assert [pair for one in facts for pair in one["small"]] == [["class 1/flat.png", 7]]
        assert main(["--verify", str(made)]) == 0
    everything = prepare(images, tmp_path / "all")
    assert manifest_of(everything)["count"] == 14


def test_more_shards_than_images_are_as_many_as_images(tmp_path):
    made = prepare(write_images(tmp_path / "images", 2), tmp_path / "made", "--shards", "50")
    assert len(list(made.glob("*.tfrecord"))) == 2


def test_verify_names_file_and_record(images, tmp_path, capsys):
    made = prepare(images, tmp_path / "made")
    assert main(["--verify", str(made)]) == 0
    assert "30 images" in (said := capsys.readouterr().out) and said.endswith("verified\n")
    path = made / "images-00001-of-00003.tfrecord"
    content = bytearray(path.read_bytes())
    second = int(path.with_suffix(".idx").read_text().splitlines()[1].split()[0])
    content[second + 40] ^= 1
    path.write_bytes(content)
    os.truncate(made / "images-00002-of-00003.tfrecord", 1000)
    (made / "labels.npy").unlink()
    assert main(["--verify", str(made)]) == 1
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert f"{made}/images-00001-of-00003.tfrecord, record 1 (class 0/022.jpg): its checksum does not match" in lines
    assert sum("images-00002" in line and "the file is cut inside this record" in line for line in lines) >= 7
    assert f"{made}/labels.npy: No such file or directory" in lines and not any(
        "images-00000" in line for line in lines
    )
    assert told.err.count("\n") == 1 and "is damaged in" in told.err


def test_interrupted_by_ctrl_c_no_process_stays(images, tmp_path):
    many = write_images(tmp_path / "many", 300, width=200, height=200)
    process = subprocess.Popen(
        # A shell ignores SIGINT for what it starts in the background, such as these tests.
        ["env", "--default-signal=INT", *PREPARE, many, "made", "--image-size", "128", "--workers", "2"],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("made/*.json")) and process.poll() is None:
        assert time.monotonic() < deadline
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (
        process.returncode == 130 and "interrupted; the same command resumes it" in error and "Traceback" not in error
    )
    while _group(process.pid):
        assert time.monotonic() < deadline


def test_the_benchmark_compares_one_process_with_two(tmp_path):
    small = "--images 12 --width 32 --image-size 16 --shards 4 --repeats 1 --folder".split()
    done = run([sys.executable, ROOT / "benchmarks" / "prepare.py", *small, tmp_path], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 -> 2 workers: " in done.stdout and done.stdout.endswith("the bytes are the same\n")
    assert list(tmp_path.iterdir()) == []
