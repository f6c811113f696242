"""report.html of a run that the trainer writes at its end: of which ends, and what it never does."""

import re

import pytest

import saved
from hvdgan import report

reports = pytest.mark.reports


def sentence(run_dir):
    """The verdict of the report."""
    return re.search(r'<p class="sentence">(.*?)</p>', (run_dir / "report.html").read_text())[1]


@reports
def test_a_finished_run_writes_its_report_again_at_each_end(tmp_path, capfd):
    assert saved.train(tmp_path / "run") == 0
    assert sentence(tmp_path / "run") == "Finished at step 8"
    assert f"hvdgan: report in {tmp_path / 'run' / 'report.html'}\n" in capfd.readouterr().err
    before = (tmp_path / "run" / "report.html").read_text()
    assert saved.train(tmp_path / "run", "--max-steps", "8") == 0  # nothing is left to do
    assert sentence(tmp_path / "run") == "Finished at step 8"
    assert (tmp_path / "run" / "report.html").read_text() != before


@reports
@pytest.mark.parametrize("verdict", ["Failed after step", "Stopped at step 4 of 8, and saved"])
def test_a_run_that_ends_early_names_the_command_which_says_why(tmp_path, capfd, verdict):
    folder, fails = tmp_path / "run", verdict.startswith("Failed")
    if fails:
        assert saved.train(folder, "--recipe", "tiny:Exploding", "--max-bad-steps", "1") == 1
    else:
        assert saved.train(folder, "--max-steps", "4") == 0
        (folder / "stop").touch()
        assert saved.train(folder) == 75
        (folder / "report.html").unlink()
    assert f"hvdgan: python -m hvdgan.report {folder} makes a page about this run\n" in capfd.readouterr().err
    assert not (folder / "report.html").exists() and report.main([str(folder)]) == 0
    assert sentence(folder).startswith(verdict)
    assert not fails or "loss or gradients are not finite" in (folder / "report.html").read_text()


@reports
def test_never_and_a_run_that_never_began_write_none(tmp_path, capfd):
    assert saved.train(tmp_path / "run", "--report", "never") == 0
    assert saved.train(tmp_path / "another", "--global-batch-size", "0") == 2
    assert saved.train(tmp_path / "other", "--data", str(tmp_path / "nowhere")) == 2
    assert not [*tmp_path.rglob("report.html")] and "hvdgan.report" not in capfd.readouterr().err


@reports
def test_a_file_of_the_users_own_is_kept_and_named(tmp_path, capfd):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.html").write_text("mine")
    assert saved.train(tmp_path / "run") == 0
    assert (tmp_path / "run" / "report.html").read_text() == "mine"
    said = capfd.readouterr().err
    assert "report.html: exists already" in said and "warning: no report was written" in said
