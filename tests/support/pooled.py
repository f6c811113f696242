"""A feature network for tests: the means of the blocks of grey 8 x 8 pictures, and classes by their brightest block."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import keras
from keras import layers


@functools.cache
def pooled() -> str:
    """The path of its file: 16 features, and as many class probabilities."""
    folder = Path(tempfile.mkdtemp(prefix="hvdgan-pooled-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    given = keras.Input((8, 8, 1))
    features = layers.Flatten()(layers.AveragePooling2D(2)(given))
    probabilities = layers.Softmax()(layers.Rescaling(3.0)(features))
    keras.Model(given, {"features": features, "probabilities": probabilities}).save(folder / "pooled.keras")
    return str(folder / "pooled.keras")
