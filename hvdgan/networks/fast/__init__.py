"""Faster kernels for Keras' layers and for Adam."""
