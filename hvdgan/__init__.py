"""Train GANs with TensorFlow and Keras on many processes, with Horovod between them."""

import importlib
import os
from typing import Any

# Before anyone imports Keras: Horovod is built for TensorFlow, whatever a user's ~/.keras/keras.json says.
os.environ["KERAS_BACKEND"] = "tensorflow"

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import hvdgan.train, which imports TensorFlow, when it is first used: hvdgan.train(recipe=MyGAN)."""
    if name == "train":
        return importlib.import_module("hvdgan.train")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
