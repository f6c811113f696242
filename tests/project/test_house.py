"""The house of docs/architecture.md: packages on floors, imports that point down, its picture, tests found by name.

Which module may import Horovod, MPI or pickle is in pyproject.toml, for ruff.
"""

import ast
import graphlib
import importlib.util
import re
from collections import defaultdict
from pathlib import Path

import hvdgan

PACKAGE = Path(hvdgan.__file__).parent
ROOT = PACKAGE.parent
TESTS = ROOT / "tests"
FLOORS = [
    "errors",
    "launching",
    "files",
    "settings",
    "cli runs values",
    "recipe networks data distributed checkpoints",
    "evaluation pages recipes",
    "training",
    "inference diagnostics",
]
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names.split()}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def imported_by(path):
    """The modules of hvdgan that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "") in MODULES:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names & MODULES.keys() or {node.module}


def room(module):
    """The package of a module, or the command."""
    return module.split(".")[1] if "." in module else module


IMPORTS = {module: set(imported_by(path)) for module, path in MODULES.items()}
PAIRS = {(room(module), room(other)) for module, others in IMPORTS.items() for other in others} - {
    (name, name) for name in map(room, MODULES)
}


def test_imports_point_down():
    """A command stands on the top floor; the settings of Python in hvdgan/__init__.py are everybody's."""
    between = {pair for pair in PAIRS if "hvdgan" not in pair}
    assert not [(a, b) for a, b in between if FLOOR.get(b, len(FLOORS)) >= FLOOR.get(a, len(FLOORS))]


def folder(module):
    """The folder of a module; a package is one itself."""
    return module if MODULES[module].stem == "__init__" else module.rpartition(".")[0]


def test_no_circle_between_modules_nor_between_folders():
    """Everyone may import the version, which lies in hvdgan/__init__.py beside the commands."""
    graphlib.TopologicalSorter({module: others - {module} for module, others in IMPORTS.items()}).prepare()
    folders = defaultdict(set)
    for module, others in IMPORTS.items():
        folders[folder(module)] |= {folder(other) for other in others - {"hvdgan"}} - {folder(module)}
    graphlib.TopologicalSorter(folders).prepare()


def test_what_a_reader_of_the_step_and_of_the_loop_meets(capsys):
    """Printed, so that a change shows what it adds: all that they import of their floors, directly or not."""
    for start in ("hvdgan.training.step", "hvdgan.training.loop"):
        found, rooms = {start}, ("recipe", "distributed", "training")
        while more := {other for module in found for other in IMPORTS[module] if room(other) in rooms} - found:
            found |= more
        lines = sum(len(MODULES[module].read_text().splitlines()) for module in found)
        with capsys.disabled():
            print(f"\n{start} with all that it imports of its floors: {len(found)} modules, {lines:,} lines")


def test_each_package_stands_on_a_floor_and_is_on_the_page_whose_picture_is_what_the_imports_say():
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    assert packages == sorted(FLOOR) == sorted(re.findall(r"^\| `hvdgan/(\w+)` \|", page, re.MULTILINE))
    spec = importlib.util.spec_from_file_location("draw_architecture", ROOT / "docs" / "draw_architecture.py")
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    assert draw.picture() == draw.PICTURE.read_text(), "look at it after: python docs/draw_architecture.py"


def test_the_tests_of_each_module_are_found_by_its_name():
    """test_NAME.py tests the module NAME; a file that tests several modules together lists them in its docstring."""
    files = list(TESTS.rglob("test_*.py"))
    listed = set()
    for path in files:
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        listed |= {f"hvdgan.{name}" for name in re.findall(r"[\w.]+\w", docstring.partition("Modules: ")[2])}
    assert listed <= MODULES.keys(), listed - MODULES.keys()
    by_name = {path.stem.removeprefix("test_") for path in files}
    modules = {module for module, path in MODULES.items() if path.stem != "__init__"}
    untested = {module for module in modules if module.rpartition(".")[2] not in by_name} - listed
    assert not untested, untested


def test_the_core_that_ci_runs_with_other_versions_is_there():
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", (ROOT / ".ci" / "versions").read_text())
    assert len(named) > 5 and all(f"def {test}" in (ROOT / file).read_text() for file, test in named), named


def test_files_of_tests_that_run_together_have_names_of_their_own():
    """pytest imports each under its bare name; those of tests/parallel run in processes of their own."""
    names = [path.name for path in TESTS.rglob("test_*.py") if path.parent.name != "parallel"]
    assert sorted(names) == sorted(set(names))
