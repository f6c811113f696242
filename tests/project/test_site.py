"""The site of the documents: `make docs` builds it, no link leads nowhere, and all that a recipe can import is there.

The commands of docs/evaluation.md work as written, but for fewer samples."""

import importlib.util
import re
import shlex
import sys

import numpy as np
import pytest
from PIL import Image

import hvdgan.recipe
from hvdgan.train import main as train
from launching import ROOT, run

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def test_make_docs_builds_every_page_and_asks_for_nothing_from_elsewhere():
    done = run(["make", "docs", "-o", "setup", f"python={sys.executable}"], ROOT, MAKEFLAGS="")
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "build" / "site"
    menu = (site / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.stem}.html" in menu, f"{page.name} is not in the menu (zensical.toml)"
        built = (site / "docs" / f"{page.stem}.html").read_text()
        assert not re.search(r"<(?:script|img|iframe|link)[^>]* (?:src|href)=\"?(?:https?:)?//", built)
    names = (site / "docs" / "api.html").read_text()
    assert all(f'id="hvdgan.recipe.{name}"' in names for name in ("losses.gradient_penalty", "stages.Update"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_are_there(page):
    """Pictures, programs and folders, of which the build of the site checks nothing."""
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    assert not [link for link in links if not (page.parent / link).exists()]
    folders = "hvdgan|tests|launch|slurm|benchmarks|examples"
    named = re.findall(rf"`((?:{folders})/[a-z0-9_/*.-]+)`", page.read_text())
    assert not [name for name in named if not list(ROOT.glob(name))]


def test_the_page_of_names_is_what_the_docstrings_say_and_has_each_name_that_a_recipe_can_import():
    spec = importlib.util.spec_from_file_location("make_api_table", ROOT / "docs" / "make_api_table.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    assert make.page() == make.PAGE.read_text(), "run: python docs/make_api_table.py"
    assert {*hvdgan.recipe.__all__} == {*" ".join(make.GROUPS.values()).split()}


def test_the_names_that_a_recipe_imports():
    assert hvdgan.recipe.__all__ == [
        *("Batch", "Count", "CountOrNever", "DataSpec", "Decay", "Domain", "Fraction", "LearningRate", "Loss", "Nets"),
        *("NoOptions", "NonNegative", "Plateau", "Positive", "Random", "Recipe", "Seed", "Stage", "State"),
        *("Update", "UserError", "Words", "losses", "metrics"),
    ]


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
