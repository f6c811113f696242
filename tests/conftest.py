import keras
import pytest


@pytest.fixture(autouse=True)
def float32():
    """A run in another precision leaves its policy behind."""
    keras.config.set_dtype_policy("float32")
