"""The site of the documents: `make docs` builds it, and no link in them leads nowhere."""

import re
import sys

import pytest

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
    assert 'id="hvdgan.recipe.losses.gradient_penalty"' in (site / "docs" / "api.html").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_are_there(page):
    """Pictures, programs and folders, of which the build of the site checks nothing."""
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    assert not [link for link in links if not (page.parent / link).exists()]
    folders = "hvdgan|tests|launch|slurm|benchmarks|examples"
    named = re.findall(rf"`((?:{folders})/[a-z0-9_/*.-]+)`", page.read_text())
    assert not [name for name in named if not list(ROOT.glob(name))]
