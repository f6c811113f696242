"""docs/recipes.md: its commands run, and what it shows is in an example."""

import re
import shlex
import shutil
import textwrap

import numpy as np
import pytest

from hvdgan.training.command import parse
from keras_cases import CASES, GROUPS, NOT_TRIED, PARTS, documented
from launching import ROOT, run

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def blocks(page, language):
    """The code blocks of a page."""
    text = (ROOT / "docs" / page).read_text()
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for named, block in found if named == language]


def commands(page):
    return [line for block in blocks(page, "") for line in block.splitlines()]


@pytest.mark.parametrize("command", commands("recipes.md"))
def test_a_command_of_the_page_on_recipes(tmp_path, monkeypatch, command):
    """test_examples.py trains them."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    if not command.startswith("hvdgan launch"):
        assert parse(shlex.split(command)[3:])
        return
    shutil.copy(ROOT / "examples" / "my_gan.py", tmp_path)
    done = run(shlex.split(re.sub(r"--steps \d+", "--steps 6 --max-steps 2 --width 4", command)), tmp_path, forked=True)
    assert done.returncode == 0 and (tmp_path / "runs/my_gan.MyGAN/samples/step-00000002.png").exists(), done.stderr


def test_the_commands_for_fields(tmp_path):
    """From the synthetic fields to ensembles, with fewer, smaller fields and fewer steps."""
    smaller = {"examples/": f"{ROOT}/examples/", "--num 5000": "--num 24", "--size 64": "--size 16"}
    smaller |= {"--nf 8": "--nf 2", "--steps 4000": "--steps 2", "--samples 80": "--samples 16"}
    (block,) = [each for each in blocks("recipes.md", "sh") if "downscale" in each]
    for command in block.splitlines():
        for whole, small in smaller.items():
            command = command.replace(whole, small)
        done = run(shlex.split(command), tmp_path, forked=True)
        assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "ensembles.npz") as drawn:
        assert drawn["samples"].shape == (16, 16, 16, 2) and len(set(drawn["index"])) == 2


@pytest.mark.parametrize("snippet", blocks("recipes.md", "python"))
def test_what_the_page_shows_is_in_an_example(snippet):
    indented = [textwrap.indent(snippet, " " * width) for width in (0, 4, 8)]
    assert any(each in example.read_text() for each in indented for example in EXAMPLES)


@pytest.mark.parametrize("group", GROUPS)
def test_each_class_of_keras_has_a_case_in_the_table(group):
    known = {*CASES[group], *NOT_TRIED.get(group, {}), *PARTS}
    assert not [names for names in documented(group) if not names & known], "add a case to tests/support/keras_cases.py"
