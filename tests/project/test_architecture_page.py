"""docs/architecture.md: its picture shows today's imports, its packages are the house's, and its files exist."""

import ast
import importlib.util
import re
import xml.etree.ElementTree

from launching import ROOT

_SPEC = importlib.util.spec_from_file_location("draw_architecture", ROOT / "docs" / "draw_architecture.py")
draw_architecture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(draw_architecture)

FOREIGN = {"draw", "latest", "_write"}  # of a recipe, a file, and named after its class
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = {path.parent.name for path in (ROOT / "hvdgan").glob("*/__init__.py")}


def test_the_picture_is_what_the_imports_say():
    assert draw_architecture.picture() == draw_architecture.PICTURE.read_text(), (
        "look at docs/architecture.svg after: python docs/draw_architecture.py"
    )


def test_the_picture_is_an_svg_with_every_package_and_command():
    root = xml.etree.ElementTree.fromstring(draw_architecture.PICTURE.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    commands = {path.stem for path in (ROOT / "hvdgan").glob("[a-z]*.py")}
    assert {f"{package}/" for package in PACKAGES} | commands <= texts
    titles = {title.text for title in root.iter("{http://www.w3.org/2000/svg}title")}
    assert "training imports distributed" in titles and "recipe imports distributed" not in titles


def test_the_packages_of_the_page_are_those_of_the_house():
    named = re.findall(r"^\| `hvdgan/(\w+)` \|", PAGE, re.MULTILINE)
    assert set(named) == PACKAGES and len(named) == len(PACKAGES)


def test_the_files_of_the_page_are_there():
    named = set(re.findall(r"`(hvdgan/[a-z_/]+(?:\.py|/))`", PAGE))
    assert len(named) > 5
    assert not [name for name in named if not (ROOT / name).exists()]


def defined(path):
    """The functions and classes of a module, and the methods as Class.method."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
            yield from (f"{node.name}.{each.name}" for each in getattr(node, "body", []) if hasattr(each, "name"))


def journeys():
    """The stations of each numbered list, as a module with the names that the page says are in it."""
    lists = []
    for number, text in re.findall(r"^(\d+)\. ((?:.+\n?)(?:   .+\n?)*)", PAGE, re.MULTILINE):
        module = re.match(r"`([\w/]+\.py)`", text)[1]
        own = re.split(r"`[\w/]+\.py`", text)[1]  # another module may follow, with names of its own
        lists = [*lists, []] if number == "1" else lists
        lists[-1].append((module, {name for name in re.findall(r"`([A-Za-z_][\w.]*)`", own) if name not in FOREIGN}))
    return lists


def test_the_journeys_are_short_and_name_what_exists():
    lists = journeys()
    assert [len({module for module, _ in stations}) for stations in lists] == [5, 15, 6, 8]
    for module, names in (station for stations in lists for station in stations):
        assert names <= {*defined(ROOT / "hvdgan" / module)}, (module, names)
