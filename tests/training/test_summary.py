"""The lines with which a run begins: networks, data, stages, ranks, the commit of the code, and changed flags.

With --dry-run --as-if-ranks N they say what N ranks would do, and each mistake that only N ranks have.
Modules: training.batch_sizes
"""

import shlex
import subprocess

import pytest

from building import tiny_run
from hvdgan.launching.programs import git_state
from hvdgan.train import main
from hvdgan.training.command import parse
from hvdgan.training.summary import changed_flags, describe, start_of
from plain_loop import AtOnce
from tiny import TinyOptions


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--data=-x --run-dir 'it'\\''s'", "'--run-dir=it'\"'\"'s' --data=-x"),
        ("--recipe tiny:Conditional --widths 5 --widths 6", "--recipe=tiny:Conditional --widths=5,6"),
    ],
)
def test_the_flags_give_the_same_settings(words, flags):
    before = parse(shlex.split(words))
    written = " ".join(changed_flags(before.config, before.options))
    assert written == flags
    assert parse(shlex.split(written)) == before


def test_commit_and_changes_are_named(tmp_path):
    def git(*words):
        command = ["git", "-C", tmp_path, "-c", "user.name=A", "-c", "user.email=a@example.org", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    (tmp_path / "recipe.py").write_text("a = 1\n")
    for words in ("init -q", "add recipe.py", "commit -q -m first"):
        git(*words.split())
    (tmp_path / "notes.txt").write_text("not a part of it")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert git_state(tmp_path) == f"git commit {commit}"
    (tmp_path / "recipe.py").write_text("a = 2\n")
    assert git_state(tmp_path) == f"git commit {commit}, with changes that are not committed"


def test_a_simultaneous_stage_is_a_fact_of_the_start_and_of_the_log():
    run = tiny_run(AtOnce)
    assert start_of(run, [], 0).stages[0].together
    assert f"stage adversarial, {TinyOptions().steps} steps, simultaneous: judge" in describe(run, [])


WORDS = "--recipe tiny:Tiny --image-size 8 --data digits --global-batch-size 24 --accumulate 3 --run-dir run".split()


def test_what_eight_ranks_would_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*WORDS, "--dry-run", "--as-if-ranks", "8"]) == 0
    said = capsys.readouterr().out
    assert "8 ranks, not elastic: 3 samples of 24 a rank and step in 3 micro-batches; an epoch has 74.875 steps" in said
    # A sample has 64 bytes of pixels, 4 of its label and 8 of its index.
    assert "slots and averages, 0.000228 MB of the 0.001824 MB of each global batch, and what" in said
    # Of 1,232 + 1,057 weights 4 bytes each go 2 * 7 / 8 times over 10 Gbit/s.
    assert "stage adversarial: all-reduces 0.01 MB a step: 0.0128 ms at 10 Gbit/s" in said
    assert "; and 0.56 ms for 2 reductions of 14 hops around a ring, 20 us each; if none is late" in said
    assert not list(tmp_path.iterdir())


def test_what_they_could_not_do_is_one_line(capsys):
    """The recipe's loss can use 8 samples, but not 1."""
    of_groups = ["--recipe", "wrong:Groups", *WORDS[2:], "--dry-run"]
    assert main([*of_groups, "--as-if-ranks", "2"]) == 0
    for words, line in (
        ([*WORDS, "--dry-run", "--as-if-ranks", "5"], "cannot be split evenly over 5 ranks; take 20 or 25"),
        ([*WORDS, "--dry-run", "--as-if-ranks", "24"], "--accumulate 3: a rank's 1 images"),
        ([*of_groups, "--as-if-ranks", "8"], "with 3 samples a rank: recipe Groups ("),
        ([*WORDS, "--as-if-ranks", "4"], "--as-if-ranks 4: is for --dry-run"),
    ):
        assert main(words) == 2 and line in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize("more", [[], ["--accumulate", "2"]])
def test_means_over_the_samples_of_one_rank_are_refused_where_all_ranks_must_have_them(capsys, more):
    """Also where one rank would take those of its last micro-batch."""
    of_state = ("OwnState", "2", 2), ("OwnState", "1", 2 if more else 0)
    for recipe, ranks, code in (("OwnMean", "2", 2), ("OwnMean", "1", 0), ("KeptMeans", "2", 0), *of_state):
        words = "--image-size 8 --global-batch-size 16 --run-dir run --dry-run --as-if-ranks".split()
        assert main(["--recipe", f"wrong:{recipe}", *words, ranks, *more]) == code
        said = {"OwnState": "the loss computes the state seen"}.get(recipe, "the loss reads discriminator/kept/mean")
        assert (said in capsys.readouterr().err) == bool(code)
