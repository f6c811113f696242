"""The versions of hvdgan and of the libraries that compute its numbers."""

import platform

import keras
import numpy as np
import tensorflow as tf

from hvdgan import __version__


def versions() -> dict[str, str]:
    """Return the version of each library by name."""
    return {
        "hvdgan": __version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }
