"""The files of a run: metrics.jsonl, TensorBoard events, log.txt, sample grids, and the report at its end.
Modules: training.grids, training.execution"""

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
    assert f"hvdgan: hvdgan report {folder} makes a page about this run\n" in capfd.readouterr().err
    assert not (folder / "report.html").exists() and report.main([str(folder)]) == 0
    assert sentence(folder).startswith(verdict)
    assert not fails or "loss or gradients are not finite" in (folder / "report.html").read_text()
