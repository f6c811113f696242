"""A run that is killed at any moment, also inside a save, resumes and ends with the bits of an uninterrupted run."""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launching import CONTROLLERS, environment, launcher, run

FLAGS = "--recipe tiny:Staged --norm batch --image-size 8 --global-batch-size 8".split()
SAVING = "--checkpoint-every 1 --keep 2 --log-every 10 --sample-every 0 --pipeline.threads 1".split()
TRAIN = [sys.executable, "-m", "hvdgan.train", *FLAGS, *SAVING]
COMMAND = [*TRAIN, "--steps", "40"]
# Ranks ask each other once a second whether to stop: from where the last is signalled on there are seconds left.
LONGER = [*TRAIN, "--steps", "250"]

# It verifies what is in a checkpoint with the reader that comes with the format, and no line of hvdgan.
READER = """
import hashlib, json, pathlib, sys
from safetensors.numpy import load_file
folders = [path for path in pathlib.Path(sys.argv[1]).glob("step-*")]
for folder in folders:
    manifest = json.loads((folder / "manifest.json").read_text())
    values = load_file(folder / "state.safetensors")
    assert values.keys() == manifest["tensors"].keys(), folder
    for name, value in values.items():
        assert hashlib.sha256(value.tobytes()).hexdigest() == manifest["tensors"][name]["sha256"], name
assert "hvdgan" not in sys.modules
print(len(folders))
"""


def verify(run_dir: Path) -> None:
    """Every checkpoint that has a name is whole."""
    done = run([sys.executable, "-I", "-c", READER, run_dir / "checkpoints"], run_dir)
    assert done.returncode == 0, done.stderr


def digest(run_dir: Path, last: int) -> str:
    return hashlib.sha256((run_dir / "checkpoints" / f"step-{last:08d}" / "state.safetensors").read_bytes()).hexdigest()


def latest(run_dir: Path) -> int:
    try:
        return int((run_dir / "checkpoints" / "latest").read_text()[5:])
    except (OSError, ValueError):
        return 0


def start(cwd: Path, *words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*words, "--run-dir", "run"],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=(cwd / "stderr.txt").open("a"),
        start_new_session=True,
    )


def wait_for(condition, process: subprocess.Popen, seconds: float = 120) -> None:
    """Poll until a condition holds, while the process runs and for a bounded time."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < end, "it did not come so far"
        time.sleep(0.0005)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    done = run([*COMMAND, "--run-dir", "run"], folder)
    assert done.returncode == 0, done.stderr
    return digest(folder / "run", 120)


@pytest.mark.timeout(600)
def test_a_run_that_is_killed_again_and_again_ends_with_the_bits_of_one_that_was_not(tmp_path, whole):
    draws = random.Random(0)
    for target in sorted(draws.sample(range(1, 119), 3)):
        process = start(tmp_path, *COMMAND)
        try:
            wait_for(lambda target=target: latest(tmp_path / "run") >= target, process)
            # Somewhere in the steps and saves that follow.
            end = time.monotonic() + draws.uniform(0, 0.03)
            wait_for(lambda end=end: time.monotonic() >= end, process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        verify(tmp_path / "run")
    done = run([*COMMAND, "--run-dir", "run"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert digest(tmp_path / "run", 120) == whole
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(10, 121, 10))
    assert not list((tmp_path / "run" / "checkpoints").glob(".step*"))


def ranks_of(run_dir: Path) -> dict[int, int]:
    """Process ids of the ranks that train into this folder's run, by rank."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"hvdgan.train" in words and Path(os.readlink(process / "cwd")) == run_dir.parent:
                variables = dict(
                    entry.split(b"=", 1) for entry in (process / "environ").read_bytes().split(b"\0") if b"=" in entry
                )
                rank = variables.get(b"HOROVOD_RANK", variables.get(b"OMPI_COMM_WORLD_RANK"))
                if rank is not None:
                    found[int(rank)] = int(process.name)
        except (OSError, ValueError):
            continue
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_rank_1_alone_is_killed_and_later_all_are_asked_to_stop_in_each_stage(tmp_path, controller):
    words = [*launcher(2, controller), *LONGER]
    left_alone = tmp_path / "alone"
    left_alone.mkdir()
    done = run([*words, "--run-dir", "run"], left_alone)
    assert done.returncode == 0, done.stderr
    run_dir = tmp_path / "run"
    for target, rank, which in [
        (5, 1, signal.SIGTERM),
        (255, 1, signal.SIGKILL),
        (265, 0, signal.SIGUSR1),
        (510, 1, signal.SIGUSR2),
    ]:
        # The run before may have gone past the target: one step of this one, and its ranks are there and listen.
        target = max(target, latest(run_dir) + 1)
        process = start(tmp_path, *words)
        try:
            wait_for(lambda target=target: latest(run_dir) >= target, process)
            os.kill(ranks_of(run_dir)[rank], which)
            assert process.wait(timeout=200) != 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        end = time.monotonic() + 60
        while ranks_of(run_dir):
            assert time.monotonic() < end, "a rank is left"
        verify(run_dir)
        if which != signal.SIGKILL:
            log = (run_dir / "log.txt").read_text()
            assert f"rank {rank}: {which.name}) and saved" in log
    done = run([*words, "--run-dir", "run"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert digest(run_dir, 750) == digest(left_alone / "run", 750)


def test_a_full_disk_is_reported_training_continues_and_the_old_checkpoints_stay(tmp_path):
    """A bound on the size of files stands in for a full disk: writing fails in the middle of one."""
    first = [*COMMAND, "--run-dir", "run", "--max-steps", "4"]
    assert run(first, tmp_path).returncode == 0
    before = {path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")}
    more = ["bash", "-c", 'ulimit -f 20; exec "$@"', "bash", *COMMAND, "--run-dir", "run", "--max-steps", "8"]
    done = run(more, tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.count("the run continues") >= 1
    assert done.stderr.splitlines()[-1].startswith("hvdgan: checkpoint run/checkpoints/step-00000008 cannot be written")
    assert {path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")} == before
    verify(tmp_path / "run")
    assert run([*COMMAND, "--run-dir", "run", "--max-steps", "8"], tmp_path).returncode == 0


def test_a_run_folder_that_is_read_only_is_refused_in_a_line(tmp_path):
    """For root, too."""
    (tmp_path / "run").mkdir()
    script = 'mount --bind run run && mount -o remount,ro,bind run && exec "$@"'
    alone = ["unshare", "--mount", *(["--map-root-user"] * (os.geteuid() != 0)), "bash", "-c", script, "bash"]
    done = run([*alone, *COMMAND, "--run-dir", "run"], tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("hvdgan: --run-dir run") and "Read-only" in done.stderr
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("content", ["no settings", '{"recipe": "other"}'])
def test_a_foreign_folder_is_refused_and_left_as_it_is(tmp_path, content):
    foreign = tmp_path / "run"
    foreign.mkdir()
    (foreign / "config.json").write_text(content)
    done = run([*COMMAND, "--run-dir", "run"], tmp_path)
    assert done.returncode == 2 and "config.json" in done.stderr and "Traceback" not in done.stderr
    assert (foreign / "config.json").read_text() == content
    assert {path.name for path in foreign.iterdir()} <= {"config.json", ".lock"}
