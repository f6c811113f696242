"""The layers of docs/architecture.md, walked: a module imports only what stands below it."""

import ast
from pathlib import Path

import hvdgan

PACKAGE = Path(hvdgan.__file__).parent

# From the top down; a module may import those of later lines, not those of its own line or above.
LAYERS = [
    {"bench"},
    {"speed"},
    {"train", "sample", "complete", "export", "inspect", "doctor", "slurm", "prepare"},
    {"probe"},
    {"allreduce", "checks"},
    {"elastic"},
    {"loop", "trained"},
    {"commits"},
    {"startup"},
    {"guards", "bad_files", "resume", "plateau", "cli", "saver", "stopping", "contents"},
    {"changes"},
    {"run"},
    {"samples", "step", "evaluation", "origin"},
    {"apply", "retention", "packing"},
    {"state"},
    {"returned"},
    {"augment", "scaling", "checkpoint", "metrics", "bottleneck", "data", "recipes"},
    {"recipe", "nets", "repeatable", "layers", "fused", "fast_layers", "plain", "saved", "app"},
    {"membership"},
    {"stages", "draws", "distributed", "networks", "losses", "measures", "exits", "outputs", "blending", "lock", "jobs"}
    | {"heartbeat"},
    {"layer_state", "convolution", "spectral", "peers", "devices", "transport", "bundling"},
    {"watch", "progress"},
    {"lines"},
    {"config", "launchers", "hosts", "verdicts", "replacing", "mistakes", "activity"},
    {"collective_errors"},
    {"errors", "lean", "remapper"},
]
# Who may speak to the other ranks.
MAY_IMPORT_DISTRIBUTED = {"train", "loop", "run", "step", "layers", "evaluation", "plateau", "stopping", "startup"} | {
    *("probe", "allreduce", "elastic", "membership", "speed"),
}


def _imports():
    """(module, imported) pairs; modules of a subpackage count as the subpackage."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((module, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((module, f"{node.module}.{alias.name}") for alias in node.names)


def test_every_module_has_a_layer():
    modules = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.name[0] not in "._"}
    assert modules == set().union(*LAYERS)


def test_imports_point_down():
    depth = {name: number for number, names in enumerate(LAYERS) for name in names}
    for module, imported in _imports():
        parts = imported.split(".")
        if parts[0] != "hvdgan" or module == "__init__" or parts[1] in ("__version__", module):
            continue
        assert depth[module] < depth[parts[1]], f"{module} imports {imported}"


def test_only_these_speak_to_other_ranks():
    who = {module for module, imported in _imports() if imported.startswith("hvdgan.distributed")}
    assert who == MAY_IMPORT_DISTRIBUTED


def test_one_module_imports_horovod_and_mpi():
    """Training speaks through Horovod; hvdgan.prepare, which does without it, through MPI."""

    def who(library: str) -> set[str]:
        return {module for module, imported in _imports() if imported.split(".")[0] == library}

    # membership: the one beside it that hears, in an elastic run, of hosts that come and go.
    assert who("horovod") == {"distributed", "membership"}
    assert who("mpi4py") == {"packing"}


def test_nothing_reads_pickles_or_evaluates_text():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                assert name not in ("eval", "exec", "allgather_object", "broadcast_object"), f"{path.name}: {name}"
    assert not [
        module for module, imported in _imports() if imported.split(".")[0] in ("pickle", "cloudpickle", "dill")
    ]
