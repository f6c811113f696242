"""The site of the documents: `make docs` builds it, no link leads nowhere, and all that a recipe can import is there.

The commands of the pages have the flags that they name."""

import importlib.util
import re
import shlex
import sys
from unittest.mock import Mock

import pytest

import hvdgan.api
import hvdgan.recipe
from hvdgan import __main__ as commands
from hvdgan.diagnostics.speed import Bench
from hvdgan.errors import UserError
from hvdgan.training.command import parse
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
    assert {*hvdgan.recipe.__all__, *hvdgan.api.__all__} == {*" ".join(make.GROUPS.values()).split()}


def test_the_names_that_a_recipe_imports():
    assert hvdgan.recipe.__all__ == [
        *("Batch", "Count", "CountOrNever", "DataSpec", "Decay", "Domain", "Fraction", "Loss", "Nets"),
        *("NoOptions", "NonNegative", "Plateau", "Positive", "Random", "Recipe", "Schedule", "Seed", "Stage", "State"),
        *("Update", "UserError", "Words", "losses", "metrics"),
    ]


USED = ("checkpoints", "evaluation", "performance", "photographs", "unpaired", "using")
COMMANDS = [
    line
    for name in USED
    for line in (ROOT / "docs" / f"{name}.md").read_text().splitlines()
    if re.match(rf"hvdgan ({'|'.join(commands.COMMANDS)}) ", line)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_a_page_has_the_flags_that_it_names(tmp_path, monkeypatch, capsys, command):
    """There are no runs here, which a command says when it has read its flags; the tests of the commands use runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Bench, "launch", Mock(side_effect=UserError("it would start ranks")))
    # --watch would wait for the run.
    words = [word for word in shlex.split(command.partition(" >")[0], comments=True) if word != "--watch"]
    name, *arguments = words[words.index("-np") + 2 :] if words[1] == "launch" else words[1:]
    if name == "train":
        parse([word for word in arguments if not word.endswith("config.json") and word != "--config"])
    elif name != "features":
        assert importlib.import_module(f"hvdgan.{name}").main(arguments) == 2
        said = capsys.readouterr().err
        assert not re.search("Unknown option|Invalid value|Unused Tokens|requires an argument", said), said
