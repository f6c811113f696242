"""A start without what no training needs, half of the time in which a command is imported and ends.

Keras imports scikit-learn and matplotlib where they are installed, for wrappers and galleries: two seconds of CPU in
every rank, and thousands of small files from what is often a network's file system. Python looks for garbage again and
again among the modules that come, and once more among all of them when it ends; modules are none.
"""

import gc
import sys
from typing import Any

OPTIONAL = frozenset({"matplotlib", "sklearn"})
_collects_again = False


def begin() -> None:
    """Call it before Keras is imported; whoever imports what was left out afterwards gets it."""
    global _collects_again
    sys.meta_path.insert(0, _NotForKeras)
    _collects_again = gc.isenabled()
    gc.disable()


def imported() -> None:
    """Call it when most is imported: nobody looks at that again. Without begin() it does nothing."""
    global _collects_again
    if _collects_again:
        gc.freeze()
        gc.enable()
    _collects_again = False


class _NotForKeras:
    """A finder, first in line, to which these packages are not there as long as Keras is being imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name in OPTIONAL and _is_being_imported("keras"):
            raise ModuleNotFoundError(f"hvdgan leaves {name} out of Keras", name=name)


def _is_being_imported(name: str) -> bool:
    # Import's own mark, which the next Python may not have: then Keras imports what it likes, and only takes longer.
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False)
