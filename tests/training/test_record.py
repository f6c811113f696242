"""The files of a run: metrics.jsonl, TensorBoard events, log.txt, sample grids, and the report at its end.
Modules: training.grids, training.page"""

import re
import threading
from types import SimpleNamespace

import pytest

import saved
from hvdgan.training import page
from hvdgan.training.step import StageStep

reports = pytest.mark.reports


def sentence(run_dir):
    """The verdict of the report."""
    return re.search(r'<p class="sentence">(.*?)</p>', (run_dir / "report.html").read_text())[1]


@pytest.mark.long
@reports
def test_a_finished_run_writes_its_report_again_at_each_end(tmp_path, capfd):
    assert saved.train(tmp_path / "run", "--max-steps", "4") == 0
    assert sentence(tmp_path / "run") == "Finished at step 4 of 8, as --max-steps asked"
    assert saved.train(tmp_path / "run") == 0
    assert sentence(tmp_path / "run") == "Finished at step 8"
    assert f"hvdgan: report in {tmp_path / 'run' / 'report.html'}\n" in capfd.readouterr().err
    before = (tmp_path / "run" / "report.html").read_text()
    assert saved.train(tmp_path / "run", "--max-steps", "8") == 0  # nothing is left to do
    assert sentence(tmp_path / "run") == "Finished at step 8"
    assert (tmp_path / "run" / "report.html").read_text() != before


@reports
@pytest.mark.parametrize("verdict", ["Failed after step", "Stopped at step 4 of 8, and saved"])
def test_the_page_of_a_run_that_ends_early_says_why(tmp_path, verdict):
    folder, fails = tmp_path / "run", verdict.startswith("Failed")
    if fails:
        assert saved.train(folder, "--recipe", "tiny:Exploding", "--max-bad-steps", "1") == 1
    else:
        assert saved.train(folder, "--max-steps", "4") == 0
        (folder / "stop").touch()
        assert saved.train(folder) == 75
    assert sentence(folder).startswith(verdict)
    assert not fails or "loss or gradients are not finite" in (folder / "report.html").read_text()


@reports
def test_a_run_writes_its_page_after_the_first_checkpoint_and_the_log_names_it(tmp_path, monkeypatch):
    seen, is_written, write, step = [], threading.Event(), page.write_page, StageStep.__call__

    def noted(run_dir, *others):
        failure = write(run_dir, *others)
        seen.append(sentence(run_dir))
        is_written.set()
        return failure

    def held(self, number, *others):
        assert number < 6 or is_written.wait(120)
        return step(self, number, *others)

    monkeypatch.setattr(page, "write_page", noted)
    monkeypatch.setattr(StageStep, "__call__", held)
    assert saved.train(tmp_path / "run", "--checkpoint-every", "2") == 0
    assert [each.partition(" at step")[0] for each in seen] == ["Running", "Finished"]
    assert str(tmp_path / "run" / "report.html") in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(("seconds", "tries"), [(0.0, 3), (2.0, 1)])
def test_a_page_is_written_for_a_hundredth_of_the_time_and_a_failure_is_named_once(
    tmp_path, monkeypatch, seconds, tries
):
    clock, failures, used = iter(range(100)), iter(["the disk is full", "", ""]), iter([0.0, seconds] * 3)
    monkeypatch.setattr(page, "write_page", lambda *_: next(failures))
    monkeypatch.setattr(page.os, "times", lambda: SimpleNamespace(children_user=next(used), children_system=0.0))
    monkeypatch.setattr(page.time, "monotonic", lambda: next(clock))
    mine, said = page.Page("checkpoints"), []
    mine.run_dir = tmp_path
    for _ in range(3):
        said.append(mine.renew())
        for thread in threading.enumerate():
            if thread.name == "page":
                thread.join()
    assert said == ["", "the disk is full", ""] and len(list(failures)) == 3 - tries
