"""hvdgan.train with a Keras and a TensorFlow that have lost the private names which hvdgan reads where it can.

python newer.py ARGUMENTS ...: the arguments are the trainer's.
"""

import functools
import sys

import keras
import tensorflow as tf

READERS = ("nested_layers.py", "repeatable.py")
NAMES = ("_flatten_layers", "_non_trainable_variables", "_get_function")


def _hide_from_hvdgan(owner: type) -> None:
    plain = owner.__getattribute__

    @functools.wraps(plain)
    def read(self, name):
        if name in NAMES and sys._getframe(1).f_code.co_filename.endswith(READERS):  # noqa: SLF001
            raise AttributeError(f"no {name}")
        return plain(self, name)

    owner.__getattribute__ = read


if __name__ == "__main__":
    for owner in (keras.Layer, tf.Graph):
        _hide_from_hvdgan(owner)
    keras.__version__ = "3.99.0"
    from hvdgan.train import main

    sys.exit(main(sys.argv[1:]))
