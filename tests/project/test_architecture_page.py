"""docs/architecture.md: its picture shows today's imports, its packages are the house's, and its files exist."""

import importlib.util
import re

from launching import ROOT

_SPEC = importlib.util.spec_from_file_location("draw_architecture", ROOT / "docs" / "draw_architecture.py")
draw_architecture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(draw_architecture)

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = {path.parent.name for path in (ROOT / "hvdgan").glob("*/__init__.py")}


def test_the_picture_is_what_the_imports_say():
    assert draw_architecture.picture() == draw_architecture.PICTURE.read_text(), (
        "look at docs/architecture.svg after: python docs/draw_architecture.py"
    )


def test_the_packages_of_the_page_are_those_of_the_house():
    named = re.findall(r"^\| `hvdgan/(\w+)` \|", PAGE, re.MULTILINE)
    assert set(named) == PACKAGES and len(named) == len(PACKAGES)
