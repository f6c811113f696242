"""What commands write: a file or folder is whole, whatever falls in between."""

import os
import shutil
from pathlib import Path

import pytest

from hvdgan.cli import outputs


def _cut_off(path, operations):
    """Write a folder anew in a child that ends before one of its operations; whether it came to it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = operations

    def counted(operation):
        def call(*arguments, **options):
            nonlocal left
            if left == 0:
                os._exit(9)
            left -= 1
            return operation(*arguments, **options)

        return call

    try:
        Path.rename, shutil.rmtree = counted(Path.rename), counted(shutil.rmtree)
        outputs.write_folder(path, _holding("new"))
        os._exit(0)
    finally:
        os._exit(1)


def _holding(text):
    def save(folder):
        folder.mkdir()
        (folder / "text").write_text(text)

    return save


def test_a_folder_written_anew_is_there_after_a_crash_between_any_two_operations(tmp_path):
    operations, seen = 0, []
    while True:
        path = tmp_path / str(operations) / "made"
        outputs.write_folder(path, _holding("old"))
        crashed = _cut_off(path, operations)
        assert path.exists(), f"lost before operation {operations}"
        seen.append((path / "text").read_text())
        outputs.write_folder(path, _holding("newer"))
        assert (path / "text").read_text() == "newer" and [each.name for each in path.parent.iterdir()] == ["made"]
        if not crashed:
            break
        operations += 1
    assert seen[0] == "old" and seen[-1] == "new"


def test_where_names_cannot_be_exchanged_the_next_write_puts_back_what_a_crash_has_left(tmp_path, monkeypatch):
    monkeypatch.setattr("hvdgan.cli.replacing.exchange", lambda *_: False)
    path = tmp_path / "made"
    outputs.write_folder(path, _holding("old"))
    path.rename(tmp_path / ".made.old")

    def full(folder):
        folder.mkdir()
        raise OSError(28, "No space left on device")

    with pytest.raises(outputs.RunError, match="No space left"):
        outputs.write_folder(path, full)
    assert (path / "text").read_text() == "old"
    outputs.write_folder(path, _holding("new"))
    assert (path / "text").read_text() == "new" and [each.name for each in tmp_path.iterdir()] == ["made"]
