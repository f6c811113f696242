"""The lines with which a run begins: networks, data, stages, ranks, the commit of the code, and changed flags.
Modules: training.code_state"""

import shlex
import subprocess

import pytest

from hvdgan.training.code_state import git_state
from hvdgan.training.command import parse
from hvdgan.training.summary import changed_flags


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--data=-x --run-dir 'it'\\''s'", "--run-dir 'it'\"'\"'s' --data=-x"),
        ("--recipe tiny:Conditional --widths 5 --widths 6", "--recipe tiny:Conditional --widths 5,6"),
    ],
)
def test_the_flags_give_the_same_settings(words, flags):
    before = parse(shlex.split(words))
    written = " ".join(changed_flags(before.config, before.options))
    assert written == flags
    after = parse(shlex.split(written))
    assert (after.config, after.options) == (before.config, before.options)


def git(folder, *words):
    names = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *names, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def test_commit_and_changes_are_named(tmp_path):
    (tmp_path / "recipe.py").write_text("a = 1\n")
    for words in ("init -q", "add recipe.py", "commit -q -m first"):
        git(tmp_path, *words.split())
    (tmp_path / "notes.txt").write_text("not a part of it")
    commit = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert git_state(tmp_path) == f"git commit {commit}"
    (tmp_path / "recipe.py").write_text("a = 2\n")
    assert git_state(tmp_path) == f"git commit {commit}, with changes that are not committed"
