"""Checkpoints on the disk: written whole, verified, read back exactly, found by their numbers, kept or removed.
Modules: checkpoints.files"""

import copy
import itertools
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from building import FACTS, changed, data_of, stage_step, tiny_run, values_of, write_checkpoint
from hvdgan.checkpoints import files
from hvdgan.checkpoints.files import Snapshot, find, newest, newest_first, step_of
from hvdgan.errors import RunError
from hvdgan.train import main
from saved import latest, steps
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
    path = write_checkpoint(tmp_path, 3, trained.state.tensors(), FACTS)
    other = tiny_run(options=TinyOptions(norm="batch"), seed=1)
    assert {"networks", "ema", "optimizers"} == {name.split("/")[0] for name in changed(saved, values_of(other))}
    manifest = files.read_manifest(path)
    files.assign(other.state.tensors(), files.read(path).of_root(), path)
    assert not changed(saved, values_of(other))
    assert (manifest["step"], manifest["stage"]) == (3, "adversarial")
    assert newest(tmp_path) == path == tmp_path / "step-00000003.safetensors"
    assert {
        "networks/generator/generator/dense/kernel",
        "ema/generator/generator/batch_normalization/moving_mean",
        "optimizers/generator/generator/dense/kernel/momentum",
    } <= manifest["tensors"].keys()


def test_a_manifest_that_was_edited_is_damaged_and_its_fields_are_named(tmp_path):
    edited = copy.deepcopy(FACTS) | {"versions": [], "stages": ["adversarial", ["a", 8]]}
    edited["data"]["spec"] |= {"values": 3, "shape": [8, None], "domains": None}
    edited["progress"] = {"ended": [], "bad_files": {}, "ranks": [{}, 3]}
    path = write_checkpoint(tmp_path, 3, {}, edited)
    with pytest.raises(files.DamagedCheckpoint) as caught:
        files.read_manifest(path)
    assert "of another type: versions, stages, data/spec/shape, data/spec/domains, data/spec/values and 3 more" in str(
        caught.value
    )


def test_a_checkpoint_of_other_networks_is_refused_by_name(trained, tmp_path):
    path = write_checkpoint(tmp_path, 3, trained.state.tensors(), FACTS)
    with pytest.raises(RunError, match="this run has no .*batch_normalization"):
        files.assign(tiny_run().state.tensors(), files.read(path).of_root(), path)
    wider = tiny_run(options=TinyOptions(norm="batch"), image_size=16)
    said = r"dense_1/kernel is float32 \(16, 64\), and the network's is float32 \(16, 256\)"
    with pytest.raises(RunError, match=said):
        files.assign(wider.state.tensors(), files.read(path).of_root(), path)


def test_an_array_that_is_not_contiguous_is_written_as_it_is(tmp_path):
    values = {"a": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.array(7, np.int64)}
    path = files.write(tmp_path, Snapshot(1, values, FACTS))
    found = load_file(path)
    assert files.damaged(path, files.read_manifest(path)) == []
    assert all(found[name].shape == each.shape and (found[name] == each).all() for name, each in values.items())


OPERATIONS = [(files, "save_file"), *((Path, name) for name in ("rename", "unlink", "chmod")), (os, "fsync")]


def crashes_before(number, work):
    """Do work in a forked child that ends just before one of its operations, as by a power cut; False: it has fewer."""
    if child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 9), f"the work failed before operation {number}: exit code {code}"
        return code == 9
    left = itertools.count(number, -1)
    counted = lambda operation: lambda *words, **more: operation(*words, **more) if next(left) else os._exit(9)  # noqa: E731
    try:
        for owner, name in OPERATIONS:
            setattr(owner, name, counted(getattr(owner, name)))
        work()
        os._exit(0)
    finally:
        os._exit(1)


def test_a_step_written_anew_is_there_after_a_crash_between_any_two_operations(tmp_path):
    old, new = ({"a": np.full(3, value, np.float32)} for value in (1, 2))
    cut_off, seen = 0, []
    while True:
        folder = tmp_path / str(cut_off) / "checkpoints"
        for step in (2, 3):
            files.write(folder, Snapshot(step, old, FACTS))
        crashed = crashes_before(cut_off, partial(files.write, folder, Snapshot(3, new, FACTS)))
        found = find(folder.parent)
        assert [step_of(path) for path in newest_first(folder)] == [3, 2], f"lost before operation {cut_off}"
        assert files.damaged(found, files.read_manifest(found)) == [] and latest(folder.parent) == 3
        seen.append(float(load_file(found)["a"][0]))
        files.remove_partial(folder)
        files.write(folder, Snapshot(4, new, FACTS))
        assert {path.name for path in folder.iterdir()} == {"latest", *(path.name for path in newest_first(folder))}
        if not crashed:
            break
        cut_off += 1
    assert cut_off > 6 and seen == sorted(seen) and set(seen) == {1.0, 2.0}


def test_a_save_that_fails_leaves_the_older_one_as_it_was(tmp_path, monkeypatch):
    first = files.write(tmp_path, Snapshot(3, {}, FACTS))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save_file", full)
    with pytest.raises(RunError, match="step-00000004.safetensors cannot be written: .*No space left"):
        files.write(tmp_path, Snapshot(4, {}, FACTS))
    assert newest(tmp_path) == first and len(list(tmp_path.iterdir())) == 2


HEADERS = {
    "empty": (b"", "header cannot be read: Expecting value: line 1"),
    "hostile": (b"\xff" * 8 + b"{}", "it has 18,446,744,073,709,551,615 bytes, and 16,777,216 are the most"),
    "no text": (b"\x10" + bytes(7) + b"\xff" * 16, "header cannot be read: 'utf-8' codec can't decode"),
    "deep": ((1 << 16).to_bytes(8, "little") + b"[" * (1 << 16), "header cannot be read: maximum recursion depth"),
    "of another program": (b"\x02" + bytes(7) + b"{}", "header cannot be read: it has no manifest"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_is_damaged_or_hostile_is_a_line_that_says_what_to_do(tmp_path, name):
    content, said = HEADERS[name]
    path = tmp_path / "step-00000001.safetensors"
    path.write_bytes(content)
    with pytest.raises(RunError) as error:
        files.read_manifest(path)
    line = str(error.value)
    assert line.startswith(f"{path} is not a checkpoint: ") and said in line and line.count("\n") == 0
    assert line.endswith("; copy it anew, or use another checkpoint") and len(line) < 400


STEPS = [9_000_000, 99_999_999, 100_000_000, 2_000_000_000]


def test_the_newest_is_found_by_number_and_not_by_name(tmp_path):
    folder = tmp_path / "checkpoints"
    for step in STEPS:
        files.write(folder, Snapshot(step, {}, FACTS))
    (folder / "step-9999999999.safetensors").mkdir()  # of somebody else
    for content in ("step-99999999.safetensors\n", "", "../elsewhere\n"):  # as after a crash
        (folder / "latest").write_text(content)
        assert [step_of(path) for path in newest_first(folder)] == STEPS[::-1]
        assert step_of(newest(folder)) == step_of(find(tmp_path)) == STEPS[-1]


TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 8 --checkpoint-every 1 --keep 1".split()


def test_an_old_checkpoint_that_cannot_be_deleted_is_reported_and_fails_nothing(tmp_path, monkeypatch):
    remove = Path.unlink

    def unlink(path, **more):
        if path.name == "step-00000002.safetensors":
            raise OSError(1, "Operation not permitted", str(path))
        remove(path, **more)

    monkeypatch.setattr(Path, "unlink", unlink)
    assert main([*TINY, "--steps", "4", "--run-dir", str(tmp_path)]) == 0
    log = (tmp_path / "log.txt").read_text()
    name = tmp_path / "checkpoints" / "step-00000002.safetensors"
    assert log.count(f"warning: old checkpoint {name} cannot be removed: [Errno 1]") == 2  # by steps 3 and 4
    assert "cannot be written" not in log and steps(tmp_path) == [2, 4]


def test_the_newest_the_best_and_the_last_of_each_stage_stay_and_those_of_other_runs(tmp_path):
    folder, left = tmp_path / "checkpoints", []
    files.write(folder, Snapshot(1, {}, {**FACTS, "run_id": "another"}))
    for step, best, stage in ((2, 2, 0), (3, 2, 0), (4, 2, 1), (5, 5, 1), (6, 5, 1), (7, 7, 1)):
        snapshot = Snapshot(step, {}, {**FACTS, "best": {"step": best}, "stage_index": stage})
        files.write(folder, snapshot)
        assert files.prune(folder, snapshot, keep=1) == []
        left.append(steps(tmp_path))
    assert left == [[1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 3, 5], [1, 3, 5, 6], [1, 3, 7]]
