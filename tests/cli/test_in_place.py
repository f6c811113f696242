"""Files of a run folder that are written in place are never written through a link."""

import pytest

import saved

NAMES = (".lock", "events.jsonl", "evaluation.jsonl")


@pytest.fixture
def elsewhere(tmp_path):
    """A file of the user that is in no run folder."""
    path = tmp_path / "thesis.tex"
    path.write_text("years of work\n")
    return path


@pytest.mark.parametrize("name", NAMES)
def test_a_link_in_a_run_folder_is_refused_and_what_it_names_is_left_alone(tmp_path, capsys, elsewhere, name):
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(elsewhere)
    assert saved.train(run) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{run / name} is a symbolic link" in error and "move it away" in error
    assert elsewhere.read_text() == "years of work\n"


def test_a_file_that_is_replaced_is_never_written_through_a_link_either(tmp_path, elsewhere):
    run = tmp_path / "run"
    assert saved.train(run, "--max-steps", "4") == 0
    for name in (".config.partial.json", ".metrics.partial.jsonl", ".real.partial.png"):
        (run / "samples" / name if name.endswith("png") else run / name).symlink_to(elsewhere)
    (run / "checkpoints" / ".latest.partial").symlink_to(elsewhere)
    assert saved.train(run) == 0 and saved.steps(run)[-1] == 8
    assert elsewhere.read_text() == "years of work\n"
