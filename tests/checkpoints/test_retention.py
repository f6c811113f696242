"""Which checkpoints are kept, the best among them, and how the others are removed.

Modules: checkpoints.direction, checkpoints.saver.
"""

import shutil

import pytest

from hvdgan.checkpoints import checkpoint
from hvdgan.checkpoints.saver import Best, Retention
from hvdgan.train import main

TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 8 --checkpoint-every 1 --keep 1".split()


@pytest.fixture
def stuck(monkeypatch):
    """Folders with a common prefix cannot be deleted: as on NFS, where a file that is open elsewhere stays."""
    names = []
    remove = shutil.rmtree

    def rmtree(path, *others, ignore_errors=False, **more):
        if any(path.name.startswith(name) for name in names):
            if ignore_errors:
                return
            raise OSError(39, "Directory not empty", str(path))
        remove(path, *others, ignore_errors=ignore_errors, **more)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    return names


def left(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir() if path.name != "latest")


def test_an_old_checkpoint_that_cannot_be_deleted_is_reported_and_fails_nothing(tmp_path, stuck):
    stuck += [".step-00000002", ".step-00000003"]
    assert main([*TINY, "--steps", "4", "--run-dir", str(tmp_path)]) == 0
    log = (tmp_path / "log.txt").read_text()
    for step in (2, 3):  # the last one is met by the last save
        name = tmp_path / "checkpoints" / f"step-0000000{step}"
        assert log.count(f"warning: old checkpoint {name} cannot be removed: [Errno 39]") == 1
    assert "cannot be written" not in log
    assert left(tmp_path) == [".step-00000002.deleted", ".step-00000003.deleted", "step-00000004"]
    stuck.clear()
    assert main([*TINY, "--steps", "5", "--run-dir", str(tmp_path)]) == 0
    assert left(tmp_path) == ["step-00000005"]


def test_if_the_best_could_not_be_written_the_best_before_it_stays(tmp_path):
    found = []
    for step, best in ((1, 1), (2, 2), (4, 3), (5, 3), (6, 3), (7, 7)):
        facts = {"run_id": "r", "stage_index": 0, "data": {}, "config": {}, "best": {"step": best}}
        snapshot = checkpoint.Snapshot(step, {}, facts)
        checkpoint.write(tmp_path / "checkpoints", snapshot)
        assert Retention(2).prune(tmp_path / "checkpoints", snapshot) == []
        found.append([int(name[-1]) for name in left(tmp_path)])
    assert found == [[1], [1, 2], [2, 4], [2, 4, 5], [2, 5, 6], [6, 7]]


@pytest.mark.parametrize(
    ("name", "mode", "best"),
    [("eval/hole_psnr", "max", 2), ("judge/accuracy", "max", 2), ("eval/fid", "min", 3), ("psnr/loss", "min", 3)],
)
def test_more_is_better_only_where_the_name_of_the_metric_says_so(name, mode, best):
    found = Best.of(name, None, None).after(1, 3.0).after(2, 4.0).after(3, 2.0)
    assert (found.mode, found.step) == (mode, best)
    assert Best.of(name, "min", None).mode == "min", "a mode that is given holds"
