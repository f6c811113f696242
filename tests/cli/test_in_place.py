"""Files of a run folder that are written in place are never written through a link."""

import pytest

import saved


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
