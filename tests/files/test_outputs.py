"""A command writes a file or folder whole, or not at all, and in place never through a link.
Modules: files.replacing, files.png, files.in_place"""

import pytest

import saved
from hvdgan.errors import RunError
from hvdgan.files import outputs
from hvdgan.files.replacing import whole_file


def test_a_folder_is_replaced_when_it_is_whole_or_not_at_all(tmp_path):
    def save(folder, text="new"):
        folder.mkdir()
        (folder / "text").write_text(text)

    def fail(folder):
        save(folder, "ne")
        raise OSError(28, "No space left on device")

    path = tmp_path / "made"
    outputs.write_folder(path, lambda folder: save(folder, "old"))
    with pytest.raises(RunError, match="made cannot be written: .*No space left"):
        outputs.write_folder(path, fail)
    assert (path / "text").read_text() == "old"
    outputs.write_folder(path, save)
    assert (path / "text").read_text() == "new" and [each.name for each in tmp_path.iterdir()] == ["made"]


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
