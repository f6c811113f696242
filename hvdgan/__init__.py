"""Train GANs with TensorFlow and Keras on many processes, with Horovod between them."""

__version__ = "0.1.0"
