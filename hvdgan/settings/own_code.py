"""The user's own modules, which are the only code that a run folder or a file of settings may name."""

import functools
import hashlib
import importlib.util
import os
import re
import sys
import sysconfig
import types
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from hvdgan.errors import UserError

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_INSTALLED = [each.resolve() for each in (*_INSTALLED, Path(__file__).parents[1])]


def search_working_folder() -> None:
    """Let Python search the working folder, as for python -m, also for an installed command."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def is_installed(file: Path) -> bool:
    """Whether a file, whose path is resolved, belongs to Python, a package or hvdgan."""
    return any(map(file.is_relative_to, _INSTALLED)) or bool({"site-packages", "dist-packages"} & {*file.parts})


def file_of(module: str) -> Path | None:
    """The file of a module of the user's own, found without running anything; None if there is none."""
    search_working_folder()
    folders, origin = None, None
    for part in module.split("."):
        if (spec := PathFinder.find_spec(part, folders)) is None:
            return None
        folders, origin = spec.submodule_search_locations, spec.origin
    file = Path(origin or "").resolve()
    loaded = getattr(sys.modules.get(module), "__file__", None) or ("" if module in sys.modules else file)
    is_own = file.suffix == ".py" and loaded and not is_installed(file) and not is_installed(Path(loaded).resolve())
    return file if is_own else None


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file of any size, in hex."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def names_own_data(data: str) -> bool:
    """Whether --data names an attribute of a module that can be found, and no file."""
    if not _NAME.fullmatch(data) or os.path.exists(data) or os.path.exists(data.partition(":")[0]):
        return False
    search_working_folder()
    module, first = data.partition(":")[0], data.partition(":")[0].partition(".")[0]
    spec = None if module in sys.modules else importlib.util.find_spec(first)  # a notebook's __main__ has none
    return module in sys.modules or (spec is not None and (first == module or bool(spec.submodule_search_locations)))


def refuse_foreign(where: str, name: str, code: Mapping[str, Any] | None = None) -> None:
    """Refuse a name in a file unless its code is the user's own, and among the digests of `code` if there are any."""
    module, colon, _ = name.partition(":")
    is_ours, file = where.endswith("--recipe") and module.startswith("hvdgan.recipes."), file_of(module)
    if not colon or is_ours or (file is not None and (code is None or sha256_of(file) in code.values())):
        return
    problem = f"{file} has changed since the run was trained; restore it"
    if file is None:
        problem = f"there is no {module}.py of your own beside installed packages; give the command in its folder"
    raise UserError(f"{where} {name}: {problem}, or, if you trust it, give {where.split()[-1]} {name}")


def refuse_foreign_settings(where: str, settings: Mapping[str, Any], words: Sequence[str] = ()) -> None:
    """Do the same for the names in a file of settings that are in no word of the command line."""
    given = {part for word in words for part in re.split("[=,]", word)}
    for key in ("recipe", "data", "other_data", "logger"):
        value = settings.get(key) or ""
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name in sorted({*text.split(",")} - given):
            if "data" not in key or names_own_data(name):
                refuse_foreign(f"{where}: --{key.replace('_', '-')}", name)


def refuse_borrowed(named: str, found: Any) -> None:
    """Refuse to call what a file of the user's own has only imported, or what belongs to the standard library."""
    home = str(getattr(found.func if isinstance(found, functools.partial) else found, "__module__", None))
    is_own, of_python = file_of(named.split()[1].partition(":")[0]), home.partition(".")[0] in sys.stdlib_module_names
    is_made = isinstance(found, functools.partial | types.MethodType)  # by the file that is named
    if file_of(home) is None and ((is_own and not is_made) or of_python):
        cure = f"name what your own file defines, or {home}:{getattr(found, '__name__', 'NAME')} itself"
        raise UserError(f"{named}: belongs to {home}; {cure}")
