"""Converts images to packed shards for python -m hvdgan.prepare, without TensorFlow and Horovod."""
