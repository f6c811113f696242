"""Documents: their links lead to files and headings that exist, and the files that they name exist."""

import re

import pytest

from launching import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def anchors(path):
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        file, _, anchor = link.partition("#")
        if "://" not in link:
            target = page.parent / file if file else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_every_page_is_linked_from_the_readme_or_from_a_page():
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in re.findall(r"\]\(([^):]+\.md(?:#[\w-]+)?)\)", page.read_text())
    }
    assert {page for page in PAGES if page.parent == ROOT / "docs"} <= linked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names(page):
    folders = "hvdgan|tests|launch|slurm|benchmarks|examples"
    named = re.findall(rf"`((?:{folders})/[a-z0-9_/*.-]+)`", page.read_text())
    assert not [name for name in named if not list(ROOT.glob(name))]
