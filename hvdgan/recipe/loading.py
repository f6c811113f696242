"""Finds the class of a recipe by the value of --recipe, and the files of its code."""

import contextlib
import difflib
import importlib
import inspect
import os
import re
import sys
from pathlib import Path
from types import ModuleType

from hvdgan.errors import UserError
from hvdgan.recipe.recipe import Recipe
from hvdgan.recipe.recipe_errors import call, home_of, is_users, of_module
from hvdgan.settings.own_code import file_of, search_working_folder, sha256_of

_HVDGAN = __package__.partition(".")[0]


def load_recipe(name: str) -> type[Recipe]:
    """Import a file of hvdgan.recipes, or package.module:Attribute, and return the class of the recipe."""
    known = f"expected one of {', '.join(known_recipes())}, or your own as package.module:Attribute"
    if not re.fullmatch(r"\w+|\w+(\.\w+)*:\w+", name):
        raise UserError(f'--recipe "{name}": {known}')
    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py"):
        raise UserError(f"--recipe {name}: expected package.module:Attribute, as in {module_name[:-3]}:{attribute}")
    if not attribute:
        module_name, attribute = f"hvdgan.recipes.{name}", "RECIPE"
    search_working_folder()
    with of_module(f"--recipe {name}", module_name):
        module = call(_imported, name, module_name, known, what="its import")
    recipes = {key: each for key, each in vars(module).items() if isinstance(each, type) and issubclass(each, Recipe)}
    if attribute not in recipes:
        what = "is no recipe" if hasattr(module, attribute) else "is not there"
        own = ", ".join(key for key, each in recipes.items() if each.__module__ == module_name) or "none"
        raise UserError(
            f"--recipe {name}: {attribute} {what}; {module.__file__} has the recipes (subclasses of "
            f"hvdgan.recipe.Recipe): {own}"
        )
    return recipes[attribute]


def _imported(name: str, module_name: str, known: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not (error.name and f"{module_name}.".startswith(f"{error.name}.")):
            raise  # the module exists, and imports one that does not
        if os.path.isfile(f"{name}.py"):
            known = f"for your {name}.py name the class, too, as in {name}:MyGAN"
        elif meant := difflib.get_close_matches(name, known_recipes(), 1):
            known = f"did you mean {meant[0]}?"
        raise UserError(f"--recipe {name}: there is no module {module_name}; {known}") from error


def digests_of_files(recipe: Recipe, *names: str) -> dict[str, str]:
    """The SHA-256 in hex of each file of the user's code, by its path below the folder of the recipe or its package.

    These are the files of the recipe's class and of the classes it inherits from, of the user's modules in `names`, and
    of all modules that are loaded from that folder, without those of libraries.
    """
    module = type(recipe).__module__
    try:
        folder = Path(os.path.abspath(inspect.getfile(type(recipe)))).parents[module.count(".")]
    except (TypeError, OSError):  # a class of the __main__ of an interactive session
        return {}
    bases = {kind.__module__ for kind in type(recipe).__mro__} - {Recipe.__module__}
    bases |= {named for named, colon, _ in (name.partition(":") for name in names) if colon and file_of(named)}
    home = None if module.startswith(f"{_HVDGAN}.") else home_of(module)
    digests = {}
    for name, loaded in sorted(sys.modules.items()):
        path = os.path.abspath(getattr(loaded, "__dict__", {}).get("__file__") or "")
        below = path.startswith(os.path.join(folder, ""))
        if path.endswith(".py") and (name in bases or (home and below and is_users(path, home))):
            with contextlib.suppress(OSError):
                digest = sha256_of(Path(path))
                digests[os.path.relpath(path, folder) if below else os.path.basename(path)] = digest
    return digests


def known_recipes() -> list[str]:
    """The names of hvdgan's own recipes."""
    folder = os.path.join(os.path.dirname(os.path.dirname(__file__)), "recipes")
    return sorted(name[:-3] for name in os.listdir(folder) if name.endswith(".py") and not name.startswith("_"))
