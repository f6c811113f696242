"""A run that is killed at any moment, also inside a save, resumes and ends with the bits of an uninterrupted run."""

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

from launching import environment, run

FLAGS = "--recipe tiny:Staged --norm batch --image-size 8 --global-batch-size 8".split()
SAVING = "--checkpoint-every 1 --keep 2 --log-every 10 --sample-every 0 --pipeline.threads 1".split()
TRAIN = [sys.executable, "-m", "hvdgan.train", *FLAGS, *SAVING]
COMMAND = [*TRAIN, "--steps", "40"]
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


def test_a_run_folder_that_is_read_only_is_refused_in_a_line(tmp_path):
    """For root, too."""
    (tmp_path / "run").mkdir()
    script = 'mount --bind run run && mount -o remount,ro,bind run && exec "$@"'
    alone = ["unshare", "--mount", *(["--map-root-user"] * (os.geteuid() != 0)), "bash", "-c", script, "bash"]
    done = run([*alone, *COMMAND, "--run-dir", "run"], tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("hvdgan: --run-dir run") and "Read-only" in done.stderr
    assert list((tmp_path / "run").iterdir()) == []
