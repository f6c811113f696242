"""Checkpoints on the disk: written whole, verified, read back exactly, found by their numbers, kept or removed.
Modules: checkpoints.direction, checkpoints.files, checkpoints.saver"""

import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from building import FACTS, changed, data_of, stage_step, tiny_run, values_of, write_checkpoint
from crashing import crashes_before
from hvdgan.checkpoints import checkpoint, files
from hvdgan.checkpoints.files import MANIFEST, find, newest, newest_first, step_of
from hvdgan.checkpoints.saver import Retention
from hvdgan.errors import RunError
from hvdgan.files import replacing
from hvdgan.train import main
from tiny import TinyOptions


@pytest.fixture
def trained():
    """A run whose every variable has moved away from its initial value."""
    run = tiny_run(options=TinyOptions(norm="batch"))
    step = stage_step(run)
    for number in range(3):
        step(number, number, data_of(run, number))
    return run


def test_everything_that_training_changes_is_saved_and_restored(trained, tmp_path):
    saved = values_of(trained)
    folder = write_checkpoint(tmp_path, 3, trained.state.tensors(), FACTS)
    other = tiny_run(options=TinyOptions(norm="batch"), seed=1)
    assert {"networks", "ema", "optimizers"} == {name.split("/")[0] for name in changed(saved, values_of(other))}
    manifest = files.read_manifest(folder)
    checkpoint.load(folder, manifest, other.state.tensors())
    assert not changed(saved, values_of(other))
    assert (manifest["step"], manifest["stage"]) == (3, "adversarial")
    assert files.newest(tmp_path) == folder == tmp_path / "step-00000003"
    assert {
        "networks/generator/generator/dense/kernel",
        "ema/generator/generator/batch_normalization/moving_mean",
        "optimizers/generator/generator/dense/kernel/momentum",
    } <= manifest["tensors"].keys()


def test_a_checkpoint_of_other_networks_is_refused_by_name(trained, tmp_path):
    folder = write_checkpoint(tmp_path, 3, trained.state.tensors(), FACTS)
    manifest = files.read_manifest(folder)
    with pytest.raises(RunError, match="this run has no .*batch_normalization"):
        checkpoint.load(folder, manifest, tiny_run().state.tensors())
    wider = tiny_run(options=TinyOptions(norm="batch"), image_size=16)
    said = r"dense_1/kernel is float32 \(16, 64\), and the network's is float32 \(16, 256\)"
    with pytest.raises(RunError, match=said):
        checkpoint.load(folder, manifest, wider.state.tensors())


def test_a_save_that_fails_leaves_the_older_one_as_it_was(trained, tmp_path, monkeypatch):
    first = write_checkpoint(tmp_path, 3, trained.state.tensors(), FACTS)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(RunError, match="step-00000004 cannot be written: .*No space left"):
        write_checkpoint(tmp_path, 4, trained.state.tensors(), FACTS)
    assert files.newest(tmp_path) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000003"]


OPERATIONS = [*((Path, name) for name in ("rename", "mkdir", "rmdir", "unlink")), (shutil, "rmtree")]
OPERATIONS += [*((os, name) for name in ("fsync", "rmdir", "unlink")), (replacing, "exchange")]


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_step_written_anew_is_there_after_a_crash_between_any_two_operations(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(replacing, "exchange", lambda *_: False)
    old, new = ({"a": np.full(3, value, np.float32)} for value in (1, 2))
    cut_off, seen = 0, []
    while True:
        folder = tmp_path / str(cut_off)
        for step in (2, 3):
            checkpoint.write(folder, checkpoint.Snapshot(step, old, FACTS))
        anew = partial(checkpoint.write, folder, checkpoint.Snapshot(3, new, FACTS))
        crashed = crashes_before(cut_off, anew, OPERATIONS)
        found = files.newest(folder)
        assert found in files.newest_first(folder) and len(files.newest_first(folder)) == 2
        assert files.read_manifest(found)["step"] == 3, f"lost before operation {cut_off}"
        assert files.damaged(found, files.read_manifest(found)) == []
        assert files.find(folder / "step-00000003") == found
        seen.append(float(load_file(found / "state.safetensors")["a"][0]))
        checkpoint.write(folder, checkpoint.Snapshot(4, new, FACTS))
        names = sorted(path.name for path in folder.iterdir())
        assert names == ["latest", "step-00000002", "step-00000003", "step-00000004"]
        assert files.damaged(folder / "step-00000003", files.read_manifest(folder / "step-00000003")) == []
        if not crashed:
            break
        cut_off += 1
    assert cut_off > 6 and seen == sorted(seen) and set(seen) == {1.0, 2.0}


STEPS = [9_000_000, 99_999_999, 100_000_000, 2_000_000_000]


def test_the_newest_is_found_by_number_and_not_by_name(tmp_path):
    numbered = tmp_path / "checkpoints"
    for step in STEPS:
        (numbered / f"step-{step:08d}").mkdir(parents=True)
        (numbered / f"step-{step:08d}" / MANIFEST).write_text("{}")
    assert [step_of(path) for path in newest_first(numbered)] == STEPS[::-1]
    assert step_of(newest(numbered)) == step_of(find(numbered.parent)) == STEPS[-1]
    for content in ("step-99999999\n", "step-00000009\n", "", "../elsewhere\n"):  # as after a crash
        (numbered / "latest").write_text(content)
        assert step_of(newest(numbered)) == STEPS[-1]
    (numbered / f"step-{STEPS[-1]}" / MANIFEST).unlink()  # not complete
    assert step_of(newest(numbered)) == STEPS[-2]


TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 8 --checkpoint-every 1 --keep 1".split()


def left(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir() if path.name != "latest")


def test_an_old_checkpoint_that_cannot_be_deleted_is_reported_and_fails_nothing(tmp_path, monkeypatch):
    """As on NFS, where a file that is open elsewhere stays."""
    remove = shutil.rmtree

    def rmtree(path, *others, ignore_errors=False, **more):
        if not path.name.startswith(".step-00000002"):
            remove(path, *others, ignore_errors=ignore_errors, **more)
        elif not ignore_errors:
            raise OSError(39, "Directory not empty", str(path))

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert main([*TINY, "--steps", "4", "--run-dir", str(tmp_path)]) == 0
    log = (tmp_path / "log.txt").read_text()
    name = tmp_path / "checkpoints" / "step-00000002"
    assert log.count(f"warning: old checkpoint {name} cannot be removed: [Errno 39]") == 1
    assert "cannot be written" not in log
    assert left(tmp_path) == [".step-00000002.deleted", "step-00000004"]


def test_if_the_best_could_not_be_written_the_best_before_it_stays(tmp_path):
    found = []
    for step, best in ((1, 1), (2, 2), (4, 3), (5, 3), (6, 3), (7, 7)):
        snapshot = checkpoint.Snapshot(step, {}, {**FACTS, "best": {"step": best}})
        checkpoint.write(tmp_path / "checkpoints", snapshot)
        assert Retention(2).prune(tmp_path / "checkpoints", snapshot) == []
        found.append([int(name[-1]) for name in left(tmp_path)])
    assert found == [[1], [1, 2], [2, 4], [2, 4, 5], [2, 5, 6], [6, 7]]
