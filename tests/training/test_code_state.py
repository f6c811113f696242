"""The commit of the user's code, in the first lines of a run and in its report."""

import shutil
import subprocess
from pathlib import Path

import pytest

import saved
import tiny
from hvdgan.pages.reading import journal
from hvdgan.pages.reading.untrusted import Folder
from hvdgan.training.code_state import git_state

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder, *words):
    names = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *names, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository with one committed file."""
    git(tmp_path, "init", "-q")
    (tmp_path / "recipe.py").write_text("a = 1\n")
    git(tmp_path, "add", "recipe.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_commit_and_changes_are_named(repository):
    commit = git(repository, "rev-parse", "--short=12", "HEAD")
    assert git_state(repository) == f"git commit {commit}"
    (repository / "notes.txt").write_text("not a part of it")
    assert git_state(repository) == f"git commit {commit}"
    (repository / "recipe.py").write_text("a = 2\n")
    assert git_state(repository) == f"git commit {commit}, with changes that are not committed"


def test_a_program_that_the_repository_names_is_not_run(repository):
    (repository / "monitor").write_text(f"#!/bin/sh\ntouch {repository / 'struck'}\n")
    (repository / "monitor").chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(repository / "monitor"))
    assert git_state(repository).startswith("git commit ")
    assert not (repository / "struck").exists()


def test_the_first_lines_of_a_run_and_its_report_name_it(repository, monkeypatch, capsys):
    shutil.copy(tiny.__file__, repository / "recipe.py")
    monkeypatch.chdir(repository)
    monkeypatch.syspath_prepend(repository)
    assert saved.train(Path("run"), "--recipe", "recipe:Tiny") == 0
    said = f"; {git_state(repository)}"
    assert said.endswith("not committed") and said in " ".join(capsys.readouterr().err.split())
    assert said in journal.read(Folder(Path("run"))).start.machine[0]
