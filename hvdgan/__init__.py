"""Train GANs with TensorFlow and Keras on many processes, with Horovod between them."""

import os

# Before anyone imports Keras: Horovod is built for TensorFlow, whatever a user's ~/.keras/keras.json says.
os.environ["KERAS_BACKEND"] = "tensorflow"

__version__ = "0.1.0"
