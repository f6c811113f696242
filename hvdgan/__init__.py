"""Train GANs with TensorFlow and Keras on many processes, with Horovod between them."""

import os
import sys

from hvdgan.cli import start as lean

# Before anyone imports Keras: Horovod is built for TensorFlow, whatever a user's ~/.keras/keras.json says.
os.environ["KERAS_BACKEND"] = "tensorflow"

# What Python calls itself while `python -m hvdgan.…` looks for its module; in others' programs nothing is left out.
if sys.argv[:1] == ["-m"]:
    lean.begin()

__version__ = "0.1.0"
