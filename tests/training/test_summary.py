"""The lines with which a run begins: networks, data, stages, ranks, the commit of the code, and changed flags.

Modules: training.code_state.
"""

import re
import shlex
import subprocess

import pytest

from hvdgan.training.code_state import git_state
from hvdgan.training.command import parse
from hvdgan.training.summary import changed_flags
from launching import train as launch

COMPLETION = "--recipe completion --image-size 32 --nf 2 --global-batch-size 4 --holdout 0.1 --sample-every 0".split()
GOLDEN = """\
hvdgan VERSION, recipe completion; Python VERSION, TensorFlow VERSION, Keras VERSION, Horovod VERSION
networks: completion 4,434 trainable parameters, 138 other; discriminator 7,613 trainable parameters, 40 other
data: digits, 1,576 pictures of shape (32, 32, 1) in 10 classes, and 221 held out
stage completion, 90,000 steps: reconstruct owns completion and all-reduces 17,736 bytes
stage discriminator, 10,000 steps: judge owns discriminator and all-reduces 30,452 bytes
stage joint, 400,000 steps: judge owns discriminator and all-reduces 30,452 bytes; fool owns completion and
    all-reduces 17,736 bytes
2 rank(s) on 1 host(s), launcher horovodrun, controller Gloo, collectives Gloo; 2 images each per step
HOST: ranks 0-1: CPU, CORES each
evaluations every 500 steps: 221 held-out images
differs from the defaults: --recipe completion --image-size 32 --global-batch-size 4 --max-steps 1 \
--holdout 0.1 --sample-every 0 --report never --nf 2
run folder runs/completion: a new run, which ends at step 1 of 500,000; its config.json has every setting
"""


def logged(run_dir):
    """The lines of log.txt without their times."""
    return "".join(line[20:] for line in (run_dir / "log.txt").read_text().splitlines(keepends=True))


def first_screen(said):
    """The lines of the terminal, or of a log, before the first step of the last start."""
    lines = said.splitlines()
    begun = max(number for number, line in enumerate(lines) if line.startswith("hvdgan "))
    steps = [number for number, line in enumerate(lines) if number > begun and line.startswith("step ")]
    return lines[begun : steps[0]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_completion_with_holdout_on_two_ranks(folder):
    done = launch(folder, *COMPLETION, "--max-steps", "1", ranks=2)
    screen = first_screen(logged(folder / "runs" / "completion"))
    text = "\n".join(screen) + "\n"
    text = re.sub(r"(hvdgan|Python|TensorFlow|Keras|Horovod) \d[\w.+]*", r"\1 VERSION", text)
    text = re.sub(r"^.*: ranks 0-1: CPU, \d+ cores?", "HOST: ranks 0-1: CPU, CORES", text, flags=re.MULTILINE)
    assert text == GOLDEN
    # The terminal shows the same.
    assert all(f"[0]<stderr>:{line}\n" in done.stderr for line in screen)


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
