"""A command writes a file or folder whole, or not at all, and in place never through a link.
Modules: files.replacing, files.png, files.in_place"""

import shutil
from pathlib import Path

import pytest

import saved
from crashing import crashes_before
from hvdgan.files import outputs
from hvdgan.files.replacing import whole_file

OPERATIONS = [(Path, "rename"), (shutil, "rmtree")]


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
        crashed = crashes_before(operations, lambda: outputs.write_folder(path, _holding("new")), OPERATIONS)  # noqa: B023
        assert path.exists(), f"lost before operation {operations}"
        seen.append((path / "text").read_text())
        outputs.write_folder(path, _holding("newer"))
        assert (path / "text").read_text() == "newer" and [each.name for each in path.parent.iterdir()] == ["made"]
        if not crashed:
            break
        operations += 1
    assert seen[0] == "old" and seen[-1] == "new"


def test_a_file_is_replaced_when_it_is_whole_or_not_at_all(tmp_path):
    path = tmp_path / "facts.json"
    with whole_file(path) as partial:
        partial.write_text("old")
        assert not path.exists() and partial.suffix == ".json"
    with pytest.raises(ZeroDivisionError), whole_file(path) as partial:
        partial.write_text("ne")
        raise ZeroDivisionError
    assert path.read_text() == "old" and [each.name for each in tmp_path.iterdir()] == ["facts.json"]


@pytest.mark.parametrize("name", [".lock", "events.jsonl", "evaluation.jsonl"])
def test_a_link_in_a_run_folder_is_refused_and_what_it_names_is_left_alone(tmp_path, capsys, name):
    run, elsewhere = tmp_path / "run", tmp_path / "thesis.tex"
    elsewhere.write_text("years of work\n")
    run.mkdir()
    (run / name).symlink_to(elsewhere)
    assert saved.train(run) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{run / name} is a symbolic link" in error and "move it away" in error
    assert elsewhere.read_text() == "years of work\n"
