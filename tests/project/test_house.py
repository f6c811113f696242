"""The house of docs/architecture.md: thirteen packages on seven floors, and imports that point down only."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import hvdgan

PACKAGE = Path(hvdgan.__file__).parent
TESTS = PACKAGE.parent / "tests"
FLOORS = [
    "cli",
    "values",
    "recipe networks data distributed checkpoints",
    "evaluation pages recipes",
    "training",
    "inference diagnostics",
]
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names.split()}
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
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


def test_no_circle():
    left = {module: others - {module} for module, others in IMPORTS.items()}
    while free := {module for module, others in left.items() if not others & left.keys()}:
        left = {module: others for module, others in left.items() if module not in free}
    assert not left


def folder(module):
    """The folder of a module; a package is one itself."""
    return module if MODULES[module].stem == "__init__" else module.rpartition(".")[0]


def test_no_circle_between_folders():
    """Everyone may import the version, which lies in hvdgan/__init__.py beside the commands."""
    left = defaultdict(set)
    for module, others in IMPORTS.items():
        left[folder(module)] |= {folder(other) for other in others - {"hvdgan"}} - {folder(module)}
    while free := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in free}
    assert not left


def closure(start, rooms=("recipe", "distributed", "training")):
    """A module with all that it imports, directly or not, within some packages."""
    found, waiting = set(), [start]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += [other for other in IMPORTS[module] if room(other) in rooms]
    return found


def test_what_a_reader_of_the_step_and_of_the_loop_meets(capsys):
    """Printed, so that a change shows what it adds; the step knows nothing of the loop."""
    for start in ("hvdgan.training.step", "hvdgan.training.loop"):
        found = closure(start)
        lines = sum(len(MODULES[module].read_text().splitlines()) for module in found)
        with capsys.disabled():
            print(f"\n{start} with all that it imports of its floors: {len(found)} modules, {lines:,} lines")
    assert closure("hvdgan.training.step") < found and "hvdgan.training.loop" not in closure("hvdgan.training.step")


def test_each_package_stands_on_a_floor():
    assert {path.parent.name for path in MODULES.values() if path.parent.parent == PACKAGE} == set(FLOOR)


def importing(library):
    """The modules that import a library."""
    return {
        module
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        if name.split(".")[0] == library
    }


def test_one_module_imports_horovod():
    assert importing("horovod") == {"hvdgan.distributed.backend"}


def test_only_packing_imports_mpi():
    """Training communicates through Horovod; hvdgan.prepare, which does not need it, through MPI."""
    assert importing("mpi4py") == {"hvdgan.data.packing"}


def test_nothing_reads_pickles_or_evaluates_text():
    refused = {"eval", "exec", "allgather_object", "broadcast_object"}
    for module, path in MODULES.items():
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not refused & {getattr(call, "id", getattr(call, "attr", "")) for call in calls}, module
    assert not importing("pickle") | importing("cloudpickle") | importing("dill")


def subclasses_of_tapes(path):
    """The classes of a file that derive from a gradient tape, directly or through a class of the same file."""
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    tapes = set()
    for node in 2 * classes:  # a class may stand before its base
        if any(re.search(r"(GradientTape|Tape)$", base) or base in tapes for base in map(ast.unparse, node.bases)):
            tapes.add(node.name)
    return tapes


def test_one_module_subclasses_gradient_tapes():
    """Horovod copies the class of a tape, not the instance, so such classes have rules of their own."""
    found = {module: tapes for module, path in MODULES.items() if (tapes := subclasses_of_tapes(path))}
    assert found == {"hvdgan.distributed.reduction": {"OwnedTape", "Computed", "Bundled"}}


def test_one_module_changes_classes_and_walks_layers():
    used = re.compile(r"\.__class__ = |\b_flatten_layers\b|\b_non_trainable_variables\b")
    found = {module for module, path in MODULES.items() if used.search(path.read_text())}
    assert found == {"hvdgan.networks.nested_layers", "hvdgan.train"}  # the latter makes its module callable


def names_defined():
    """The names that the package gives to functions, classes, attributes and variables of its own."""
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                yield getattr(node, "attr", "") or getattr(node, "id", "")


def private_uses(path, own):
    """The lines that import a private module, or read a private attribute that is not the package's own."""
    tree = ast.parse(path.read_text())
    of_libraries = [
        part
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef) and any(isinstance(base, ast.Attribute) for base in kind.bases)
        for part in ast.walk(kind)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match("_(?!_)", node.attr):
            of = ast.unparse(node.value)
            if of not in ("os", "sys") and (node.attr not in own or (of == "super()" and node in of_libraries)):
                yield node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            if isinstance(node.args[1], ast.Constant) and re.match("_(?!_)", node.args[1].value):
                yield node.lineno
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if any(re.match(r"tensorflow\.python|keras\.src|horovod\.(common|runner)|.*\._", name) for name in names):
                yield node.lineno


def test_each_private_use_of_a_library_names_the_test_that_guards_it():
    """In a comment on its line, or at most three lines above."""
    own = set(names_defined())
    found = 0
    for module, path in MODULES.items():
        lines = path.read_text().splitlines()
        for number in private_uses(path, own):
            comments = "\n".join(line.partition("#")[2] for line in lines[max(0, number - 4) : number])
            guards = re.findall(r"tests/\w+/\w+\.py", comments)
            assert guards, f"{module}, line {number}: name the test that guards it"
            assert all((PACKAGE.parent / guard).exists() for guard in guards), f"{module}, line {number}: {guards}"
            found += 1
    assert found >= 8


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


def private_names(path):
    """The private names that a test imports, reads, or gives to monkeypatch.setattr."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr":
            names = [
                part for each in node.args if isinstance(each, ast.Constant) for part in str(each.value).split(".")
            ]
        yield from (name for name in names if re.match("_(?!_)", name))


def defined_in(path):
    """The names that a file defines: classes, functions, variables and attributes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            yield getattr(node, "attr", getattr(node, "id", ""))


def test_files_of_tests_that_run_together_have_names_of_their_own():
    """pytest imports each under its bare name; those of tests/parallel run in processes of their own."""
    names = [path.name for path in TESTS.rglob("test_*.py") if path.parent.name != "parallel"]
    assert sorted(names) == sorted(set(names))


def test_tests_use_public_names_only():
    ours = {name for path in MODULES.values() for name in defined_in(path)}
    used = {str(path): set(private_names(path)) & ours - set(defined_in(path)) for path in TESTS.rglob("*.py")}
    assert not {path: names for path, names in used.items() if names}
