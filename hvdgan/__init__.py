"""Train GANs with TensorFlow and Keras on many processes, with Horovod between them."""

import importlib
import os
import sys
from typing import Any

if sys.version_info < (3, 11):  # noqa: UP036  # python -m finds hvdgan in the working folder
    print(f"hvdgan: needs Python 3.11 or newer; {sys.executable} is an older one", file=sys.stderr)
    sys.exit(2)
if "inline" in os.environ.get("MPLBACKEND", "") and "IPython" not in sys.modules:
    os.environ["MPLBACKEND"] = "agg"  # a notebook's own, which `!python ...` inherits, may be missing in this Python
# Before anyone imports Keras: Horovod is built for TensorFlow, whatever a user's ~/.keras/keras.json says.
os.environ["KERAS_BACKEND"] = "tensorflow"

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what Python code uses, and with it TensorFlow, when it is first used: hvdgan.fit(recipe=MyGAN)."""
    if name in ("Logger", "RunError", "StopRun", "TrainedRun", "UserError", "fit"):
        return getattr(importlib.import_module("hvdgan.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
