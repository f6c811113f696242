"""Halves the time that a command takes to import its libraries and to end.

Keras imports scikit-learn and matplotlib if they are installed, for wrappers and galleries that no command needs: two
seconds of CPU in every rank, and thousands of small files, often from a network file system. Python looks for garbage
again and again among the modules that are imported, and once more when it ends, and modules are never garbage.
"""

import gc
import os
import sys
from typing import Any

OPTIONAL = frozenset({"matplotlib", "sklearn"})
_collects_again = False


def begin(module: str) -> None:
    """Leave the optional libraries out of Keras, and stop looking for garbage; the first statement of a command.

    A recipe that imports these libraries itself still gets them. Nothing changes in other people's programs.

    Args:
        module: `__name__` of the command's module, which is "__main__" only if Python was started with it.
    """
    global _collects_again
    if module != "__main__":
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's warnings and errors, not its news
    sys.meta_path.insert(0, _NotForKeras)
    _collects_again = gc.isenabled()
    gc.disable()


def imported() -> None:
    """Look for garbage again, except among what is imported now. Without begin() it does nothing."""
    global _collects_again
    if _collects_again:
        gc.freeze()
        gc.enable()
    _collects_again = False


class _NotForKeras:
    """A finder, first in line, that hides these packages while Keras is being imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name in OPTIONAL and _is_being_imported("keras"):
            raise ModuleNotFoundError(f"hvdgan leaves {name} out of Keras", name=name)


def _is_being_imported(name: str) -> bool:
    # `_initializing` is private to Python's import; without it Keras imports what it likes, and only takes longer.
    # tests/cli/test_start.py guards it.
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False)
