"""The programs of tests/gallery, and an example, as smooth:FILE, with nothing that magnifies rounding.

The first steps of Adam and RMSprop divide a gradient by its own size. A gradient that is 0 but for rounding, such as
that of a bias before BatchNorm, then moves a weight by the whole learning rate, up or down, and sums over two ranks
round otherwise than over one. An epsilon of 1e-3 leaves such weights where they are.

ReLU has two slopes at 0. An input of 0 but for rounding then has one gradient or the other, so these are rounded off.
"""

import importlib
import sys
from pathlib import Path

import tensorflow as tf

from hvdgan.recipe import Recipe

GALLERY = Path(__file__).parents[1] / "gallery"
EXAMPLES = ("my_tokenizer", "my_vocoder")
sys.path.append(str(GALLERY.parents[1] / "examples"))


def relu(x, name=None):
    """ReLU with a bend that is a tenth wide (Keras calls it by its name in tf.nn)."""
    return (x + tf.sqrt(x**2 + 0.01)) / 2


tf.nn.relu = relu
tf.nn.leaky_relu = lambda x, alpha=0.2, name=None: alpha * x + (1 - alpha) * relu(x)


def recipe_of(module):
    """The recipe that a file of the gallery defines."""
    own = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
    (found,) = (each for each in own if isinstance(each, type) and issubclass(each, Recipe))
    return found


def smooth(recipe):
    """The recipe with other optimizers."""

    def optimizers(self):
        found = recipe.optimizers(self)
        for each in tf.nest.flatten(found):
            if hasattr(each, "epsilon"):
                each.epsilon = 1e-3
        return found

    return type(recipe.__name__, (recipe,), {"optimizers": optimizers, "__module__": recipe.__module__})


for _name in (*EXAMPLES, *(path.stem for path in GALLERY.glob("*.py") if not path.stem.startswith("test_"))):
    globals()[_name] = smooth(recipe_of(importlib.import_module(_name)))
