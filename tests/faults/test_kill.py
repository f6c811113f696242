"""A run that is killed at any moment, also inside a save, resumes and ends with the bits of an uninterrupted run."""

import os
import random
import sys
import time
from pathlib import Path

import pytest

from launching import run, started, wait_until
from saved import latest, records, state

FLAGS = "--recipe tiny:Staged --norm batch --image-size 8 --global-batch-size 8 --steps 40 --run-dir run".split()
SAVING = "--checkpoint-every 1 --keep 2 --log-every 10 --sample-every 0 --report never --pipeline.threads 1".split()
COMMAND = [sys.executable, "-m", "hvdgan.train", *FLAGS, *SAVING]

# It verifies what is in a checkpoint with the reader that comes with the format, and no line of hvdgan.
READER = """
import hashlib, json, pathlib, sys
from safetensors import safe_open
for path in pathlib.Path(sys.argv[1]).glob("step-*"):
    with safe_open(path, "numpy") as file:
        tensors = json.loads(file.metadata()["manifest"])["tensors"]
        assert set(file.keys()) == tensors.keys(), path
        for name, facts in tensors.items():
            assert hashlib.sha256(file.get_tensor(name).tobytes()).hexdigest() == facts["sha256"], name
assert "hvdgan" not in sys.modules
"""


def verify(run_dir: Path) -> None:
    """Every checkpoint that has a name is whole."""
    done = run([sys.executable, "-I", "-c", READER, run_dir / "checkpoints"], run_dir)
    assert done.returncode == 0, done.stderr


def come_to(step: int, folder: Path, process) -> None:
    come_so_far = lambda: latest(folder / "run") >= step or process.poll() is not None  # noqa: E731
    wait_until(come_so_far, 120, (folder / "said").read_text, every=0.0005)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    done = run(COMMAND, folder, forked=True)
    assert done.returncode == 0, done.stderr
    return state(folder / "run", 120)


def test_a_run_that_is_killed_again_and_again_ends_with_the_bits_of_one_that_was_not(tmp_path, whole):
    draws = random.Random(0)
    for target in sorted(draws.sample(range(1, 119), 2)):
        with started(COMMAND, tmp_path) as process:
            come_to(target, tmp_path, process)
            time.sleep(draws.uniform(0, 0.03))  # somewhere in the steps and saves that follow
            assert process.poll() is None, (tmp_path / "said").read_text()
            process.kill()
        verify(tmp_path / "run")
    for name in (".step-00000999.partial.safetensors", ".tmpAbCdEf"):  # of hvdgan and of safetensors, by another kill
        (tmp_path / "run" / "checkpoints" / name).touch()
    done = run(COMMAND, tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    assert state(tmp_path / "run", 120) == whole
    assert [record["step"] for record in records(tmp_path / "run")] == list(range(10, 121, 10))
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


def test_a_run_folder_that_is_read_only_is_refused_in_a_line(tmp_path):
    """For root, too."""
    (tmp_path / "run").mkdir()
    script = 'mount --bind run run && mount -o remount,ro,bind run && exec "$@"'
    alone = ["unshare", "--mount", *(["--map-root-user"] * (os.geteuid() != 0)), "bash", "-c", script, "bash"]
    done = run([*alone, *COMMAND], tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("hvdgan: --run-dir run") and "Read-only" in done.stderr
    assert list((tmp_path / "run").iterdir()) == []
