"""docs/evaluation.md: its commands work as written, but for fewer samples."""

import re
import shlex

import numpy as np
import pytest
from PIL import Image

from hvdgan.train import main as train
from launching import ROOT, run

PAGE = (ROOT / "docs" / "evaluation.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [shlex.split(line, comments=True) for block in BLOCKS for line in block.splitlines()]
FEWER = {"--eval-samples": "40", "--eval-every": "2", "--samples": "40"}


def with_fewer(words):
    """The same command with fewer samples."""
    return [FEWER.get(before, word) for before, word in zip(["", *words], words, strict=False)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with the run of the page's first command, and pictures of another program."""
    folder = tmp_path_factory.mktemp("page")
    (words,) = [words for words in COMMANDS if "hvdgan.train" in words]
    short = ["--nf", "2", "--max-steps", "4", "--run-dir", str(folder / "runs" / "dcgan")]
    assert train([*with_fewer(words[words.index("hvdgan.train") + 1 :]), *short]) == 0
    (folder / "made_by_another_program").mkdir()
    for number in range(20):
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32), np.uint8)
        Image.fromarray(pixels).save(folder / "made_by_another_program" / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    "words", [words for words in COMMANDS if {"hvdgan.evaluate", "evaluate"} & {*words}], ids=" ".join
)
def test_an_evaluation_of_the_page_works(folder, words):
    more = [] if "--samples" in words else ["--samples", "40"]
    done = run([*with_fewer(words), *more], folder, forked=True)
    assert done.returncode == 0, done.stderr
    assert "eval/sliced_wasserstein  " in done.stdout
