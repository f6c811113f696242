"""The newest checkpoint of a folder is found by its step number."""

import json
import sys

import pytest

from hvdgan.checkpoints.files import MANIFEST, STATE, find, newest, newest_first, step_of
from launching import run

STEPS = [9_000_000, 99_999_999, 100_000_000, 2_000_000_000]


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of steps with eight, nine and ten digits, whose names sort in another order than their steps."""
    for step in STEPS:
        path = tmp_path / "checkpoints" / f"step-{step:08d}"
        path.mkdir(parents=True)
        (path / MANIFEST).write_text("{}")
    return tmp_path / "checkpoints"


def test_the_newest_is_found_by_number_and_not_by_name(folder):
    assert [step_of(path) for path in newest_first(folder)] == STEPS[::-1]
    assert step_of(newest(folder)) == step_of(find(folder.parent)) == STEPS[-1]


def test_the_newest_is_the_complete_one_with_the_highest_step(folder):
    (folder / f"step-{STEPS[-1]}" / MANIFEST).unlink()
    assert step_of(newest(folder)) == STEPS[-2]


def test_a_crash_before_latest_is_written_hides_no_checkpoint(folder):
    """So that samples and exports use the checkpoint from which the run would resume."""
    (folder / "latest").write_text("step-99999999\n")
    assert step_of(newest(folder)) == STEPS[-1]


def test_a_type_that_numpy_does_not_have_is_a_damaged_checkpoint(tmp_path):
    """Without TensorFlow, which gives NumPy that type."""
    header = json.dumps({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    (tmp_path / STATE).write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    code = "import pathlib; from hvdgan.checkpoints import files; list(files.read_tensors(pathlib.Path()))"
    done = run([sys.executable, "-c", code], tmp_path)
    assert "DamagedCheckpoint" in done.stderr and "state.safetensors cannot be read" in done.stderr
