"""Nothing that a run folder holds is executed: it is shown as text, or named where it cannot be read.
Modules: runs.folder, pages.template, pages.run_page"""

import html
import re

import pytest

import hostile_runs
import run_folders
from hvdgan import report
from run_folders import record


@pytest.mark.parametrize("name", hostile_runs.CASES)
def test_it_is_shown_as_text_or_named(tmp_path, capsys, name):
    words = hostile_runs.write(tmp_path / "run", name)
    assert report.main([str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert capsys.readouterr().err == ""
    shown = [word for word in words if word not in page and word not in html.unescape(page)]
    assert not shown, page[-3000:]
    assert page.count("<script>") <= 2 and not re.search("<img src=x|a secret", page)
    assert "default-src 'none'" in page and len(page) < 5_000_000


def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("no run")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "notes.txt"):
        assert report.main([str(path)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and str(path) in said and "expected" in said


def test_a_file_that_is_no_report_is_kept_without_overwrite(tmp_path, capsys):
    run = run_folders.write(tmp_path / "run", metrics=record(1, loss=1.0))
    notes = tmp_path / "notes.html"
    notes.write_text("mine")
    assert report.main([str(run), "--out", str(notes)]) == 2
    assert "--overwrite" in capsys.readouterr().err and notes.read_text() == "mine"
    assert report.main([str(run), "--out", str(notes), "--overwrite"]) == 0
    assert report.main([str(run), "--out", str(notes)]) == 0, "a report replaces a report"
